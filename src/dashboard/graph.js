// Who waits for whom, as a graph: owners and locks, circles among them, and where each is drawn.
//
// An owner points at the lock it waits for, a lock at the owners that hold it. Knows nothing of the page.

/** More owners than this are not legible in one drawing. */
export const OWNERS_MAX = 60;

export const SIZE = { width: 132, height: 34, margin: 10 };

/**
 * Who somebody is. A client is itself, whatever its connections call themselves. Over HTTP a name holds
 * (`named`), and belongs to no connection; it waits on one. Over lines it is otherwise the connection.
 */
function ownerId(someone, named) {
  if (someone.client != null) return `owner ${someone.client}`;
  if (named.has(someone.owner)) return `owner ${someone.owner}`;
  if (someone.connection != null) return `connection ${someone.connection}`;
  return `unknown ${someone.fencing_token}`;
}

function namesThatHold(locks) {
  const holders = locks.flatMap((lock) => lock.holders);
  const isNamed = (it) => it.owner && it.client == null && it.connection == null && !it.restored;
  return new Set(holders.filter(isNamed).map((it) => it.owner));
}

/**
 * The graph of these locks. Nodes are owners, locks, and `rest` for those that the server did not list;
 * edges are `waits` (owner to lock) and `held` (lock to owner). Of byte ranges the server tells who waits
 * for whom: whoever waits has a node of its own for the bytes it wants, because two who wait for bytes of one
 * resource need not have to do with each other.
 */
export function build(locks, labelOf, rangeEdges = []) {
  const nodes = new Map();
  const edges = [];
  const named = namesThatHold(locks);
  const owner = (someone) => {
    const id = ownerId(someone, named);
    if (!nodes.has(id)) nodes.set(id, { id, kind: "owner", label: someone.client ?? labelOf(someone), someone });
    return id;
  };
  const rest = (lock, what, number) => {
    const id = `rest ${what} ${lock.name}`;
    nodes.set(id, { id, kind: "rest", label: `${number} more` });
    return id;
  };
  for (const lock of locks) {
    const id = `lock ${lock.name}`;
    nodes.set(id, { id, kind: "lock", label: lock.name, lock });
    for (const holder of lock.holders) edges.push({ from: id, to: owner(holder), kind: "held", holder });
    for (const waiter of lock.waiters) edges.push({ from: owner(waiter), to: id, kind: "waits", waiter });
    const unseenHolders = lock.holder_count - lock.holders.length;
    const unseenWaiters = lock.waiter_count - lock.waiters.length;
    if (unseenHolders > 0) edges.push({ from: id, to: rest(lock, "hold", unseenHolders), kind: "held" });
    if (unseenWaiters > 0) edges.push({ from: rest(lock, "wait", unseenWaiters), to: id, kind: "waits" });
  }
  for (const { waiter, waits_for, on } of withoutDetours(rangeEdges)) {
    const id = `range ${waiter} ${on}`;
    if (!nodes.has(id)) {
      const lock = { kind: "range", holder_count: 0, waiter_count: 1 };
      nodes.set(id, { id, kind: "lock", isRange: true, label: on, lock });
      edges.push({ from: known(nodes, waiter), to: id, kind: "waits", isRange: true });
    }
    nodes.get(id).lock.holder_count += 1;
    edges.push({ from: id, to: known(nodes, waits_for), kind: "held", isRange: true });
  }
  return markCircles({ nodes, edges });
}

/** Whoever waits behind another waits for all whom that one waits for, too; that goes without saying. */
function withoutDetours(rangeEdges) {
  const pair = (waiter, waits_for, on) => JSON.stringify([waiter, waits_for, on]);
  const pairs = new Set(rangeEdges.map((it) => pair(it.waiter, it.waits_for, it.on)));
  const behind = neighbours(rangeEdges, "waiter", "waits_for");
  const isSaid = ({ waiter, waits_for, on }) => {
    const saysIt = ({ edge, to }) =>
      edge.on === on && pairs.has(pair(to, waits_for, on)) && !pairs.has(pair(to, waiter, on));
    return behind.get(waiter).some((it) => it.to !== waits_for && saysIt(it));
  };
  return rangeEdges.filter((edge) => !isSaid(edge));
}

/** The node of somebody whom the server calls by its number, `#7`, or by its name. */
function known(nodes, called) {
  const serial = /^#(\d+)$/.exec(called ?? "")?.[1];
  const someone = serial ? { connection: Number(serial), owner: null } : { connection: null, owner: called };
  const id = serial ? `connection ${serial}` : `owner ${called}`;
  const label = serial ? `connection ${serial}` : (called ?? "not claimed since the restart");
  if (!nodes.has(id)) nodes.set(id, { id, kind: "owner", label, someone });
  return id;
}

/** Nodes that can reach each other have the same `circle`; others have none. (Tarjan.) */
function markCircles(graph) {
  const next = neighbours(graph.edges, "from", "to");
  const seen = new Map();
  const stack = [];
  graph.circles = [];
  const visit = (id) => {
    const mine = { index: seen.size, low: seen.size, isOpen: true };
    seen.set(id, mine);
    stack.push(id);
    for (const { to } of next.get(id) ?? []) {
      if (!seen.has(to)) visit(to);
      if (seen.get(to).isOpen) mine.low = Math.min(mine.low, seen.get(to).low);
    }
    if (mine.low !== mine.index) return;
    const circle = stack.splice(stack.indexOf(id));
    for (const member of circle) seen.get(member).isOpen = false;
    if (circle.length === 1) return;
    for (const member of circle) graph.nodes.get(member).circle = graph.circles.length;
    graph.circles.push(circle);
  };
  for (const id of graph.nodes.keys()) if (!seen.has(id)) visit(id);
  for (const edge of graph.edges) {
    const [from, to] = [graph.nodes.get(edge.from), graph.nodes.get(edge.to)];
    edge.inCircle = from.circle !== undefined && from.circle === to.circle;
  }
  return graph;
}

function neighbours(edges, end, otherEnd) {
  const found = new Map();
  for (const edge of edges) {
    if (!found.has(edge[end])) found.set(edge[end], []);
    found.get(edge[end]).push({ edge, to: edge[otherEnd] });
  }
  return found;
}

/**
 * At most [OWNERS_MAX] owners, lock by lock: those in a circle first, then by the length of the queue.
 * Returns the graph of what is left and how much is left out.
 */
export function legible(graph) {
  const locks = [...graph.nodes.values()].filter((node) => node.kind === "lock");
  const rank = (node) => (node.circle === undefined ? 0 : 1);
  locks.sort((a, b) => rank(b) - rank(a) || b.lock.waiter_count - a.lock.waiter_count);
  const around = new Map(locks.map((node) => [node.id, []]));
  for (const { from, to } of graph.edges) {
    if (around.has(from)) around.get(from).push(to);
    else around.get(to).push(from);
  }
  const isOwner = (id) => graph.nodes.get(id).kind === "owner";
  const kept = new Set();
  let owners = 0;
  let locksLeftOut = 0;
  for (const { id } of locks) {
    const added = new Set(around.get(id).filter((other) => isOwner(other) && !kept.has(other)));
    if (owners + added.size > OWNERS_MAX) {
      locksLeftOut += 1;
      continue;
    }
    owners += added.size;
    for (const other of [id, ...around.get(id)]) kept.add(other);
  }
  const nodes = new Map([...graph.nodes].filter(([id]) => kept.has(id)));
  // Also the edges of a lock that is left out are, though its owners may be here.
  const edges = graph.edges.filter(({ from, to }) => kept.has(from) && kept.has(to));
  const allOwners = [...graph.nodes.keys()].filter(isOwner).length;
  return { graph: { nodes, edges, circles: graph.circles }, ownersLeftOut: allOwners - owners, locksLeftOut, owners };
}

/** The parts that have nothing to do with each other: with a circle first, then the largest. */
export function parts(graph) {
  const both = [...graph.edges, ...graph.edges.map((edge) => ({ ...edge, from: edge.to, to: edge.from }))];
  const near = neighbours(both, "from", "to");
  const found = [];
  const seen = new Set();
  for (const start of graph.nodes.keys()) {
    if (seen.has(start)) continue;
    seen.add(start);
    const ids = [start];
    for (const id of ids) {
      for (const { to } of near.get(id) ?? []) {
        if (seen.has(to)) continue;
        seen.add(to);
        ids.push(to);
      }
    }
    const nodes = new Map(ids.map((id) => [id, graph.nodes.get(id)]));
    found.push({ nodes, edges: graph.edges.filter(({ from }) => nodes.has(from)) });
  }
  const circles = (part) => [...part.nodes.values()].filter((node) => node.circle !== undefined).length;
  return found.sort((a, b) => circles(b) - circles(a) || b.nodes.size - a.nodes.size);
}

/**
 * Places the nodes of one part (`x`, `y`): waiters before what they wait for, from left to right or, on a
 * narrow page and if that is narrower, from top to bottom (`isDown`). Returns the size, and where the last
 * node ends across that direction: beyond it is room for edges that go back.
 */
export function place(part, isNarrow) {
  findBackEdges(part);
  const layers = order(part, layer(part));
  const isDown = isNarrow && Math.max(...layers.map((ids) => ids.length)) <= layers.length;
  const [along, across] = isDown ? [SIZE.height + 40, SIZE.width + 14] : [SIZE.width + 58, SIZE.height + 14];
  for (const ids of layers) ids.forEach((id, row) => (part.nodes.get(id).across = row * across));
  straighten(part, layers, across);
  const all = [...part.nodes.values()];
  const first = Math.min(...all.map((node) => node.across));
  layers.forEach((ids, column) => {
    for (const node of ids.map((id) => part.nodes.get(id))) {
      const [far, wide] = [SIZE.margin + column * along, SIZE.margin + node.across - first];
      [node.x, node.y] = isDown ? [wide, far] : [far, wide];
    }
  });
  const right = Math.max(...all.map((node) => node.x)) + SIZE.width;
  const bottom = Math.max(...all.map((node) => node.y)) + SIZE.height;
  const room = part.edges.some((edge) => edge.isBack) ? 3 * SIZE.margin : SIZE.margin;
  return {
    width: right + (isDown ? room : SIZE.margin),
    height: bottom + (isDown ? SIZE.margin : room),
    edge: isDown ? right : bottom,
    isDown,
  };
}

/** Marks edges that close a circle; without them there is an order from left to right. */
function findBackEdges(part) {
  const next = neighbours(part.edges, "from", "to");
  const state = new Map();
  const visit = (id) => {
    state.set(id, "open");
    for (const { edge, to } of next.get(id) ?? []) {
      edge.isBack = state.get(to) === "open";
      if (!state.has(to)) visit(to);
    }
    state.set(id, "done");
  };
  const entered = new Set(part.edges.map((edge) => edge.to));
  const ids = [...part.nodes.keys()];
  const isOwner = (id) => part.nodes.get(id).kind !== "lock";
  const starts = [...ids.filter((id) => !entered.has(id)), ...ids.filter(isOwner), ...ids];
  for (const id of starts) if (!state.has(id)) visit(id);
}

/** The column of each node: right of everything that points at it. Locks are in odd columns. */
function layer(part) {
  const forward = part.edges.filter((edge) => !edge.isBack);
  const columns = new Map([...part.nodes].map(([id, node]) => [id, node.kind === "lock" ? 1 : 0]));
  // No way is longer than there are nodes.
  let moved = true;
  for (let round = 0; moved && round < part.nodes.size; round += 1) {
    moved = false;
    for (const { from, to } of forward) {
      if (columns.get(to) > columns.get(from)) continue;
      columns.set(to, columns.get(from) + 1);
      moved = true;
    }
  }
  // Whoever only waits stands right before the lock.
  const entered = new Set(forward.map((edge) => edge.to));
  const next = neighbours(forward, "from", "to");
  for (const id of part.nodes.keys()) {
    if (entered.has(id) || !next.has(id)) continue;
    columns.set(id, Math.min(...next.get(id).map(({ to }) => columns.get(to))) - 1);
  }
  return columns;
}

/** The nodes of each column from top to bottom, with few crossings: each near the mean of its neighbours. */
function order(part, columns) {
  const first = Math.min(...columns.values());
  const layers = [];
  for (const [id, column] of columns) (layers[column - first] ??= []).push(id);
  const left = neighbours(part.edges, "to", "from");
  const right = neighbours(part.edges, "from", "to");
  for (let sweep = 0; sweep < 8; sweep += 1) {
    const near = sweep % 2 === 0 ? left : right;
    const rows = new Map(layers.flatMap((ids) => ids.map((id, row) => [id, row])));
    for (const ids of layers) {
      const mean = (id) => {
        const others = near.get(id) ?? [];
        if (others.length === 0) return rows.get(id);
        return others.reduce((sum, { to }) => sum + rows.get(to), 0) / others.length;
      };
      const means = new Map(ids.map((id) => [id, mean(id)]));
      ids.sort((a, b) => means.get(a) - means.get(b) || placeInQueue(part, a) - placeInQueue(part, b));
    }
  }
  return layers;
}

function placeInQueue(part, id) {
  const edge = part.edges.find((it) => it.from === id && it.kind === "waits");
  return edge === undefined ? 0 : (edge.waiter?.position ?? Infinity);
}

/** Moves nodes towards the middle of their neighbours, never over one another. */
function straighten(part, layers, step) {
  const both = [...part.edges, ...part.edges.map((edge) => ({ ...edge, from: edge.to, to: edge.from }))];
  const near = neighbours(both, "from", "to");
  for (let round = 0; round < 12; round += 1) {
    for (const ids of round % 2 === 0 ? layers : layers.toReversed()) {
      const nodes = ids.map((id) => part.nodes.get(id));
      const wanted = ids.map((id) => {
        const others = near.get(id) ?? [];
        return others.reduce((sum, { to }) => sum + part.nodes.get(to).across, 0) / Math.max(1, others.length);
      });
      nodes.forEach((node, index) => {
        node.across = index === 0 ? wanted[0] : Math.max(wanted[index], nodes[index - 1].across + step);
      });
      // Pushing apart went downwards only; bring the column back to where it wanted to be.
      const shift = nodes.reduce((sum, node, index) => sum + wanted[index] - node.across, 0) / nodes.length;
      for (const node of nodes) node.across += shift;
    }
  }
}

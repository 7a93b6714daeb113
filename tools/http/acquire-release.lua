-- For wrk: acquires a lock, releases it with the lease of the answer, acquires the next one.
--
-- wrk does not say which connection asks, and it does not matter: a lease belongs to its owner. Keys come
-- back after so many others that their release is long done.
--
-- wrk has one core, and must not be what is measured: so requests are put together from few pieces, and what
-- a release has to say is cut from the answer in one piece, from behind the name up to the fence.

local KEYS = 65536
local RUN = os.time() -- what the run before held when it ended is still held
local ACQUIRE = '{"owner_id":"load","ttl_ms":60000}'
local NAME_AT = #'{"acquired":true,"lock_name":"' + 1
local FENCE = '"fencing_token":'

local granted = {} -- requests to release what was granted
local first, last, key = 1, 0, 0
local to_acquire, to_release

function init()
    local head = " HTTP/1.1\r\nHost: " .. wrk.headers["Host"] .. "\r\nContent-Type: application/json\r\nContent-Length: "
    to_acquire = "/acquire" .. head .. #ACQUIRE .. "\r\n\r\n" .. ACQUIRE
    to_release = "/release" .. head
end

function request()
    if first <= last then
        local release = granted[first]
        granted[first] = nil
        first = first + 1
        return release
    end
    key = (key + 1) % KEYS
    return "POST /v1/locks/k" .. RUN .. "-" .. key .. to_acquire
end

function response(status, headers, body)
    local _, fence_at = body:find(FENCE, NAME_AT, true)
    if fence_at then
        local name_end = body:find('"', NAME_AT, true)
        local lease = body:sub(name_end + 2, body:find(",", fence_at, true) - 1)
        last = last + 1
        granted[last] = "POST /v1/locks/" .. body:sub(NAME_AT, name_end - 1) .. to_release .. #lease + 2 .. "\r\n\r\n{" .. lease .. "}"
    end
end

-- For wrk: acquires a lock, releases it with the lease of the answer, acquires the next one.
--
-- wrk does not say which connection asks, and it does not matter: a lease belongs to its owner. Keys come
-- back after so many others that their release is long done.

local KEYS = 65536
local RUN = os.time() -- what the run before held when it ended is still held
local JSON = { ["Content-Type"] = "application/json" }
local ACQUIRE = '{"owner_id":"load","ttl_ms":60000}'
local RELEASE = '{"owner_id":"load","lease_id":"%s","fencing_token":%s}'

local granted = {} -- requests to release what was granted
local first, last, key = 1, 0, 0

function request()
    if first <= last then
        local release = granted[first]
        granted[first] = nil
        first = first + 1
        return release
    end
    key = (key + 1) % KEYS
    return wrk.format("POST", "/v1/locks/k" .. RUN .. "-" .. key .. "/acquire", JSON, ACQUIRE)
end

function response(status, headers, body)
    local name, lease, fence = body:match('"lock_name":"([^"]+)".-"lease_id":"([^"]+)","fencing_token":(%d+)')
    if lease then
        last = last + 1
        granted[last] = wrk.format("POST", "/v1/locks/" .. name .. "/release", JSON, RELEASE:format(lease, fence))
    end
end

-- Puts a batch of tasks, or of dead letters, into a shard of the new layout, each as it was: with its due
-- time or its lease, its attempts, its waiting version.
-- KEYS[3] the dead letters   KEYS[5] the shard's move record: hash with the epoch in which a shard is left, if it
-- is, and for each shard that is left for this one the number of the last batch that was put   KEYS[6] the leased tasks
-- ARGV[1] the epoch of the new layout   ARGV[2] the index of the shard that is left   ARGV[3] the batch's number
-- ARGV[4] wake channel   ARGV[5] 1 for dead letters
-- then for each: ID, score, payload, state field
-- RETURNS how many were put: others stand here already; -1 if the epoch is over
-- RETRY idempotent: a second run finds the number of the batch that the first has put.
local epoch, from = redis.call('HGET', KEYS[5], 'epoch'), 'from.' .. ARGV[2]
if epoch and epoch ~= ARGV[1] then return -1 end
redis.call('ZCARD', KEYS[1]) -- check the types before the first write
if tonumber(redis.call('HGET', KEYS[5], from) or '0') >= tonumber(ARGV[3]) then return 0 end
redis.call('ZCARD', KEYS[3])
redis.call('HLEN', KEYS[2])
redis.call('HLEN', KEYS[4])
redis.call('ZCARD', KEYS[6])
need('HSET', KEYS[2])

redis.call('HDEL', KEYS[5], '') -- after this write a full server accepts the others
local ids = {}
for i = 6, #ARGV, 4 do ids[#ids + 1] = ARGV[i] end
local here, buried = redis.call('ZMSCORE', KEYS[1], unpack(ids)), redis.call('ZMSCORE', KEYS[3], unpack(ids))
local entries, payloads, fields, leases, left, first = {}, {}, {}, {}, {}, nil
for i, id in ipairs(ids) do
  local at = 2 + 4 * i
  if not here[i] and not buried[i] then
    entries[#entries + 1], entries[#entries + 2] = ARGV[at + 1], id
    local score = tonumber(ARGV[at + 1])
    if score and (not first or score < first) then first = score end
    left[#left + 1] = id -- a foreign consumer may have left a payload or a state
    if ARGV[at + 2] ~= '' then payloads[#payloads + 1], payloads[#payloads + 2] = id, ARGV[at + 2] end
    local lease = string.match(ARGV[at + 3], '^%d*%+?%d?:([%d.e+-]+)') -- see fields.lua
    if lease and (finite(lease) or 0) > now then leases[#leases + 1], leases[#leases + 2] = lease, id end
    if ARGV[at + 3] ~= '' then fields[#fields + 1], fields[#fields + 2] = id, ARGV[at + 3] end
  end
end
if #entries > 0 and ARGV[5] == '1' then redis.call('ZADD', KEYS[3], unpack(entries)) end
if #entries > 0 and ARGV[5] ~= '1' then redis.call('ZADD', KEYS[1], unpack(entries)) end
if #leases > 0 then redis.call('ZADD', KEYS[6], unpack(leases)) end
redis.call('HSET', KEYS[5], from, ARGV[3])
if #left > 0 then
  redis.call('HDEL', KEYS[2], unpack(left))
  redis.call('HDEL', KEYS[4], unpack(left))
end
if #payloads > 0 then redis.call('HSET', KEYS[2], unpack(payloads)) end
if #fields > 0 then redis.call('HSET', KEYS[4], unpack(fields)) end
if ARGV[5] ~= '1' then wake(ARGV[4], first) end
return #left

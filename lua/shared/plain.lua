-- DEFINES n, limit, leaseEnd, ids, groups, states, discards, finish, needLease, lease, moreThan, lookOut
-- USES unpack, rights, prelude, receipts, queue_idle, wake, queue_place, read, limits, freed, failure, tally, leases, done, state
-- For exchange, with its arguments; it runs before fields.lua. It deals with plain
-- tasks: to be finished and leased without an extension and without a waiting version, or due and not
-- claimed since they were enqueued or given back. These are most of a busy worker's. Its two
-- patterns only tell plain fields from others. To return here
-- saves the server the functions that follow, texts of scores that are only compared, and the
-- tables of tasks: half of its time.
local n, limit = tonumber(ARGV[2]), tonumber(ARGV[4])

local leaseEnd = n > 0 and text(now + tonumber(ARGV[3])) or ''
local present = n > 0 and text(now)

if n > 0 then readLimits() end

-- What the hashes have. This checks the types of keys, before the first write.
local payloadCount, stateCount = redis.call('HLEN', KEYS[2]), redis.call('HLEN', KEYS[4])
if n > 0 or not ARGV[5] then redis.call('ZCARD', KEYS[3]) end -- else no plain task is read from there

-- Leases that have run out, which are counted as lost. The tasks are claimed again, or gone: a foreign consumer has removed them.
local over = {}
if n > 0 then over = redis.call('ZRANGEBYSCORE', KEYS[5], '-inf', present, 'LIMIT', '0', '250') else redis.call('ZCARD', KEYS[5]) end

-- The tasks that are to be finished, and for each group of them its receipt.
local ids, groups, at = byReceipt(ARGV[2] == '0' and 5 or 10)

-- For how many seconds they are remembered, and the results of some. age is nil where none are remembered. Below zero: they are discarded.
local age, results = ARGV[at] and tonumber(ARGV[at + 1]), {}
local discards = age and age < 0
if discards then age = nil end
for i = at + 2, #ARGV, 2 do results[tonumber(ARGV[i])] = ARGV[i + 1] end

local states = #ids > 0 and redis.call('HMGET', KEYS[4], unpack(ids)) or {}

-- Says whether all tasks that are to be finished are plain, and leased for longer; and which may have a last error. What has a score is looked up by it, as far as that pays: to print a score costs more than to find it.
local function plainHeld()
  local found, others, wanted, again = {}, {}, {}, {}
  for _, group in ipairs(groups) do
    local receipt, count, known = tonumber(group.receipt), group.last - group.first + 1, {}
    if receipt <= now then return false end
    if count > 2 then
      local most = string.format('%d', 2 * count + 8)
      for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], group.receipt, group.receipt, 'LIMIT', '0', most)) do
        if found[id] == nil then found[id] = true end
      end
    end
    for i = group.first, group.last do
      local id, field = ids[i], states[i]
      if found[id] == false then return false end -- the same ID for the second time
      if not found[id] then others[#others + 1], wanted[#wanted + 1] = id, receipt end
      found[id] = false
      if not field then return false end
      if known[field] == nil then
        local attempt, lease, colon, by = string.match(field, '^(%d*)%+?%d?:([%d.]+):(:?)([!-9;-~]*)$')
        if not lease or tonumber(lease) ~= receipt or colon == '' and by ~= '' then return false end
        known[field] = attempt ~= '' and tonumber(attempt) > 1
      end
      if known[field] then again[#again + 1] = id end
    end
  end
  local scores = #others > 0 and redis.call('ZMSCORE', KEYS[1], unpack(others))
  for i = 1, #others do
    if finite(scores[i]) ~= wanted[i] then return false end
  end
  return true, again
end

-- Returns due tasks to be claimed, the attempt of each, whether all are first attempts, and when
-- each was due. nil unless all are plain.
local function plainDue(most)
  local found = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', present, 'WITHSCORES', 'LIMIT', '0', string.format('%d', most))
  local ready, dues, fields, attempts, first = {}, {}, {}, {}, true
  if found[2] and string.byte(found[2]) == 45 then return nil end -- a negative score: they come first
  for i = 1, #found / 2 do ready[i], dues[i] = found[2 * i - 1], found[2 * i] end
  if #ready > 0 and stateCount > 0 then fields = redis.call('HMGET', KEYS[4], unpack(ready)) end
  for i, id in ipairs(ready) do
    local attempt = 1
    if fields[i] then
      attempt = string.match(fields[i], '^(%d+)::$')
      if not attempt or #attempt > 9 then return nil end
      attempt, first = tonumber(attempt) + 1, false
      if limit > 0 and attempt > limit then return nil end
    end
    if id == '' then return nil end
    attempts[i] = attempt
  end
  return ready, attempts, first, dues
end

-- Removes tasks that are finished.
local function remove(finished)
  redis.call('ZREM', KEYS[1], unpack(finished))
  if payloadCount > 0 then redis.call('HDEL', KEYS[2], unpack(finished)) end
  redis.call('HDEL', KEYS[4], unpack(finished))
  redis.call('ZREM', KEYS[5], unpack(finished))
end

-- Removes tasks that are finished, and remembers them if that is wanted: then attempt returns that of the i-th, as text. place has which of ids
-- each is. Returns what the script answers of each, nothing if all are 1.
local function finish(finished, place, attempt)
  if not age then
    remove(finished)
    return {}
  end
  local kept, answers = {}, {}
  for i, id in ipairs(finished) do
    local result = results[place and place[i] or i]
    kept[i], answers[i] = { id = id, attempt = attempt(i), result = result }, result and 4 or 1
  end
  return remember(kept, age, function() remove(finished) end) and answers or {}
end

local function needLease()
  need('ZADD', KEYS[1])
  need('HSET', KEYS[4])
  if limits and limits.running > 0 then need('ZCOUNT', KEYS[5]) end
  if limits and limits.rate > 0 then need('SET', KEYS[8]) end
end

-- Writes the leases of claimed tasks, after a ZREM: after that a full server accepts it. unseen and
-- holds, what stands in front of some fields, may be nil. Redis keeps a small hash or sorted set as a list, which it would search from its beginning
-- for each of many tasks: a long value, here for a moment, prevents that. No ID is so long.
local noID = string.rep('.', 513)
local function lease(claimed, attempts, unseen, holds)
  local scores, fields, built, before = {}, {}, {}, math.max(stateCount - #ids, 0)
  for i, id in ipairs(claimed) do
    local attempt, more = attempts[i], unseen and unseen[i] or 0
    local kind = attempt * 3 + more
    if not built[kind] then built[kind] = encode(attempt, more, leaseEnd, '', ':' .. ARGV[9]) end
    scores[2 * i - 1], scores[2 * i] = leaseEnd, id
    fields[2 * i - 1], fields[2 * i] = id, holds and holds[i] and holds[i] .. built[kind] or built[kind]
  end
  redis.call('ZADD', KEYS[1], unpack(scores))
  if #over > 0 then tally('lost', redis.call('ZREM', KEYS[5], unpack(over))) end
  if #over == 250 then unlease(claimed) end -- there may be more, which the ZADD would take off uncounted
  local held = redis.call('ZCARD', KEYS[5])
  if held < 16 and held + #claimed >= 16 then
    redis.call('ZADD', KEYS[5], leaseEnd, noID, unpack(scores))
    redis.call('ZREM', KEYS[5], noID)
  else
    redis.call('ZADD', KEYS[5], unpack(scores))
  end
  if before < 16 and before + #claimed >= 16 and may('HDEL', KEYS[4]) then
    redis.call('HSET', KEYS[4], '', string.rep('.', 65), unpack(fields))
    redis.call('HDEL', KEYS[4], '')
  else
    redis.call('HSET', KEYS[4], unpack(fields))
  end
end

-- Returns what the reply says of more tasks, if most were allowed and so many were found. cut says that there was no room for all.
local function moreThan(found, most, cut)
  if cut or found == most and most == n and n > 0 then return 1 end
  return most < n and found == most and -1 or 0
end

-- Returns what headOff says after a claim, how many clients are in line, and the claimant's place there, -1 if it did not ask for one (and 0 for those).
-- Nothing is due before a pause and limits let it go. Others see to the head, unless the claimant does, which has room and reads this.
local function lookOut(claimed)
  if ARGV[2] == '0' then
    freed(#ids)
    return 3600000001, 0, -1
  end
  local off, head = headOff()
  local hold, isFull = 0, false
  if limits then hold, isFull = limits.heldBack() end
  if hold > 0 then off = math.max(off, hold) end
  local place, below = -1, tonumber(ARGV[5])
  if ARGV[1] ~= '' and claimed < math.abs(below) then
    place = join(ARGV[1], off, tonumber(ARGV[6]))
  elseif below < 0 then
    leave(ARGV[1], off)
    place = 0
  end
  -- Others do not know of a head that is due later and was added behind what was claimed, of when limits let it go, or that a place is free in
  -- a queue that was full. Of a lease they know by their looks.
  local sees = place == 2 or place == 4 or place > 0 and off <= 0
  local held = hold > 0 or limits and limits.places and #ids > 0 and limits.places + claimed <= #ids
  local isNear = held or off < tonumber(ARGV[3]) * 1000000 - 1000
  if not sees and not isFull and (claimed > 0 or held) and (off <= 0 or head and isNear and not redis.pcall('ZSCORE', KEYS[5], head)) then seeTo(off, 2) end
  return off, place < 0 and 0 or idle(), place
end

-- Checks what the script may need, before its first write.
if #ids > 0 then
  need('HDEL', KEYS[2])
  need('HDEL', KEYS[4])
end

local isPlain, again = true, {}
if #ids > 0 then isPlain, again = plainHeld() end
if isPlain then
  local ready, attempts, first, dues, most = {}, {}, true, {}, n
  if limits then most = limits.allowed(n, ids) end
  if most > 0 then ready, attempts, first, dues = plainDue(most) elseif n > 0 then redis.call('ZCARD', KEYS[1]) end -- what is of another type is no queue
  if ready then
    local read, answers = #ready, {}
    local payloads, cut = {}, false
    if payloadCount > 0 then payloads, cut = payloadsOf(ready) end
    for i = read, #ready + 1, -1 do attempts[i], dues[i] = nil, nil end
    if read > 0 then needLease() end
    if #ids > 0 then
      answers = finish(ids, nil, function(i) return string.match(states[i], '^%d+') or '0' end)
    elseif read > 0 then redis.call('ZREM', KEYS[1], ready[1]) end
    forgetErrors(again)
    tally('done', #ids)
    if discards then tally('discarded', #ids) end
    if read > 0 then lease(ready, attempts) end
    if limits then limits.spend(#ready, #ready) end
    return { moreThan(read, most, cut), leaseEnd, ready, first and {} or attempts, payloads, table.concat(dues, ' '), answers, lookOut(read) }
  end
end

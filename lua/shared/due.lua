-- Third prelude, of the scripts that read due tasks.

-- Reads up to n due tasks, after the first skip, and changes nothing. It stops early at a
-- megabyte of payload. Returns:
--   1. the tasks that are ready to be claimed;
--   2. the IDs that it read;
--   3. whether there may be more due tasks;
--   4. a function that cleans up what it read besides: a waiting version, whose lease has run
--      out, moves to its own due time; a malformed entry, and each task that the caller passes,
--      moves to the dead letters. The caller calls it after its own first write.
local function due(n, skip)
  local ready, postponed, buried, revived = {}, {}, {}, {}
  local found = redis.call('ZRANGEBYSCORE', queue, '-inf', text(now), 'WITHSCORES', 'LIMIT', skip or 0, n)

  local function classify(id, field, written)
    local score, task = finite(written), live(field)
    if not score or not task or id == '' then
      buried[#buried + 1] = { id = id, attempt = 0, payload = field or '', reason = 'malformed' }
      return
    end
    if task.revived then revived[#revived + 1] = id end
    task, score = resolve(task, score)
    task.id, task.score = id, text(score)
    local list = score > now and postponed or ready
    list[#list + 1] = task
  end

  local all, ids, size = {}, {}, 0
  for i = 1, #found, 2 do all[#all + 1] = found[i] end
  local read = reader(all)
  for i, id in ipairs(all) do
    if size >= 1048576 then break end
    local field, score = read(i), found[2 * i]
    ids[i], size = id, size + (field and #field or 0)
    if field or id == '' or string.sub(score, 1, 1) == '-' then
      classify(id, field, score)
    else -- a plain task: the most common and cheapest case
      ready[#ready + 1] = { id = id, score = score, attempt = 0, payload = '' }
    end
  end
  if not skip and #ids > #ready then needAll() end -- for the clean-up
  local more = #ids > 0 and (2 * n == #found or 2 * #ids < #found)
  return ready, ids, more, function(exhausted)
    if #revived > 0 then redis.call('ZREM', KEYS[3], unpack(revived)) end
    for _, task in ipairs(postponed) do
      move(task.id, tonumber(task.score))
      store(task.id, 0, nil, nil, task.payload)
    end
    for _, task in ipairs(exhausted) do buried[#buried + 1] = task end
    for _, task in ipairs(buried) do bury(task.id, task.attempt, task.reason, task.payload) end
  end
end

-- DEFINES finishAll
-- USES unpack, rights, prelude, failure, tally, plain, state, groups, fields, leases, stock
-- For exchange: tasks that are not plain.

-- Finishes the tasks of all groups: removes each whose receipt is valid, or lets its waiting
-- version take over. Returns what became of each, and the earliest score of those that took over.
local function finishAll()
  local reply, finished, counted, place, again, holders, known, late, first, done = {}, {}, {}, {}, {}, {}, {}, {}, nil, 0
  local scores = redis.call('ZMSCORE', KEYS[1], unpack(ids))
  needStock(states)
  for _, group in ipairs(groups) do
    local receipt = tonumber(group.receipt)
    for i = group.first, group.last do
      local id, task = ids[i], nil
      -- Else an earlier entry of this call has used up the receipt.
      if not known[id] then task = match(scores[i], states[i], receipt) end
      if task and (task.due or task.revived) then
        needAll()
        need('ZSCORE', KEYS[1]) -- for the answer on another task
      end
      if task and task.due then
        local due = giveback(id, task, 0, task.due)
        if not first or due < first then first = due end
      elseif task ~= nil then -- also a state field not written by this library: finishing the task removes it
        finished[#finished + 1], place[#finished + 1] = id, i
        counted[#finished] = string.format('%.0f', task and task.attempt or 0)
        if not (task and task.lease and task.lease > now) then late[#late + 1] = id end
        if task and (task.isAnew or task.attempt > 0) then again[#again + 1] = id end
        if task and task.holds or not task and holdsOf(states[i]) then holders[#holders + 1] = { id, states[i] } end
        unbury(id, task)
      end
      if task ~= nil then known[id], done = true, done + 1 end
      reply[i] = task ~= nil and 1 or known[id] and 0 or staleOrGone(id)
    end
  end
  if #late > 0 then unlease(late) end
  for j, answer in ipairs(#finished > 0 and finish(finished, place, function(j) return counted[j] end) or {}) do reply[place[j]] = answer end
  for _, holder in ipairs(holders) do
    settle(holder[1], holder[2], not discards)
  end
  if KEYS[14] then leaveGroups(holders) end
  forgetErrors(again)
  tally('done', done)
  if discards then tally('discarded', done) end
  return reply, first
end

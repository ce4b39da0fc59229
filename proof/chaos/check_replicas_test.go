package main

// killedWith kills the server now, when its replica has these versions, and the token of the lock
// "safe0".
func (s *scenario) killedWith(token string, versions ...string) *scenario {
	f := &found{span: span{s.now + 2*ms, s.now + 3*ms}, versions: map[string]bool{}, tokens: map[string]uint64{"safe0": digest(token)}}
	for _, v := range versions {
		f.versions[v] = true
	}
	s.restarts = append(s.restarts, restart{killed: span{s.now, s.now + ms}, up: s.now + 10*ms, found: f})
	return s
}

// keptSafe enqueues the task "v" of the queue that has a replica.
func (s *scenario) keptSafe(r result) *scenario {
	s.logs("ZADD Queue:safe @@900 v; HSET {Queue:safe}:tasks v v")
	now := s.now / ms
	return s.recorded(record{Op: opEnqueue, Name: safeQueue, ID: "v", Version: "v", Call: now, Return: now + 1, Result: r, Outcome: 1, Delay: 900*ms - s.now})
}

// heldSafe returns the record of a lock that its replica has, held until 500.
func heldSafe() record {
	return record{Op: opHold, Name: "safe0", Token: digest("T"), Call: 9, Got: 10, From: 10, Until: 20, Deadline: 500, Result: expired}
}

// replicaCases are about what is acknowledged once a replica has it.
var replicaCases = map[string]checkCase{
	"a replica has what was acknowledged":   {newScenario().at(10).keptSafe(done).at(50).killedWith("", "v"), ""},
	"a replica lacks what was acknowledged": {newScenario().at(10).keptSafe(done).at(50).killedWith(""), "is not there when the server is killed"},
	"a replica lacks what too few have":     {newScenario().at(10).keptSafe(short).at(50).killedWith(""), ""},
	"too few replicas have it, and it was not written": {newScenario().
		recorded(record{Op: opEnqueue, Name: safeQueue, ID: "v", Version: "v", Call: 10, Return: 11, Result: short, Outcome: 1}), "never written"},
	"a replica lacks what came later": {newScenario().at(20).killedWith("").at(50).keptSafe(done), ""},
	"a replica lacks what another start of the server had": {newScenario().
		at(10).keptSafe(done).at(50).killedWith("", "v").at(100).killedWith(""), ""},
	"a replica has the lock": {newScenario().at(9).logs("SET Lock:safe0 T PXAT @500").
		recorded(heldSafe()).at(50).killedWith("T"), ""},
	"a replica lacks the lock": {newScenario().at(9).logs("SET Lock:safe0 T PXAT @500").
		recorded(heldSafe()).at(50).killedWith("other"), "which does not have it"},
	"a replica lacks the lock, and the kill loses data": {newScenario().at(9).logs("SET Lock:safe0 T PXAT @500").
		recorded(heldSafe()).at(49).forgets(60).at(50).killedWith("other"), "which does not have it"},
	"a replica lacks a lock that the clock has ended": {newScenario().at(9).logs("SET Lock:safe0 T PXAT @500").
		recorded(heldSafe()).at(30).jump(3600 * 1000 * ms).at(50).killedWith("other"), ""},
	"a replica lacks a lock that has ended": {newScenario().at(9).logs("SET Lock:safe0 T PXAT @500").
		recorded(heldSafe()).at(600).killedWith(""), ""},
	"a replica lacks a lock that UnlockAll may have released": {newScenario().at(9).logs("SET Lock:safe0 T PXAT @500").
		recorded(heldSafe()).recorded(record{Op: opUnlockAll, Name: "all", Call: 30, Return: 70, Result: done}).at(50).killedWith(""), ""},
}

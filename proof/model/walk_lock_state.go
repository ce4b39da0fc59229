package model

// normalize clears what makes no difference to any later step, so that fewer states differ.
func (w LockWalk) normalize(s *lockState) {
	var callers, alive [3]int8 // of each process
	var listeners [3]bool
	for c, p := range w.Callers {
		k := &s.callers[c]
		callers[p]++
		if k.phase != crashed && (k.phase != idle || k.rounds > 0) {
			alive[p]++
		}
		if k.phase != holding {
			k.left, k.keyLeft, k.handOverLeft = 0, 0, 0
		}
		if k.command.kind == release {
			k.command.reply, k.command.age = 0, 0
		}
		if k.phase == acquiring && k.command.reply > 0 {
			k.command.age = 0
		}
		listeners[p] = listeners[p] || k.listens
	}
	for c, p := range w.Callers {
		if callers[p] == 1 { // there is no other caller to hand over to
			s.callers[c].keyLeft, s.callers[c].handOverLeft = 0, 0
		}
		s.processes[p].notified = s.processes[p].notified && listeners[p]
		if alive[p] == 0 {
			s.processes[p] = process{pending: s.processes[p].pending}
		}
	}
	s.freed = s.freed && s.token == 0
	w.renumber(s)
}

// renumber gives the lowest numbers to those tokens of each caller that are still in use.
func (w LockWalk) renumber(s *lockState) {
	var number [3 * tokens]int8
	s.eachToken(func(token int8) int8 { number[token] = 1; return token })
	number[0] = 0
	for c := range w.Callers {
		k := &s.callers[c]
		k.tokens = 0
		for token := int8(c*tokens) + 1; token < int8(c*tokens)+tokens; token++ {
			if number[token] != 0 {
				k.tokens++
				number[token] = int8(c*tokens) + k.tokens
			}
		}
	}
	s.eachToken(func(token int8) int8 { return number[token] })
}

// eachToken changes every token in a state.
func (s *lockState) eachToken(change func(token int8) int8) {
	s.token = change(s.token)
	for c := range s.callers {
		k, p := &s.callers[c], &s.processes[c]
		k.token, k.command.token = change(k.token), change(k.command.token)
		k.command.replaces = change(k.command.replaces)
		before := *p
		p.pending = [3]uint8{}
		for token := range int8(3 * tokens) {
			if of, bit := before.pendingRelease(token); *of&bit != 0 {
				of, bit = p.pendingRelease(change(token))
				*of |= bit
			}
		}
	}
	for i := range s.copies {
		s.copies[i].token, s.copies[i].replaces = change(s.copies[i].token), change(s.copies[i].replaces)
	}
}

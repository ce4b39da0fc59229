package sluice

// Waiting is how many callers stand in a Locker's lines, behind those in front.
func Waiting(l *Locker) (n int) {
	l.lines.mu.Lock()
	defer l.lines.mu.Unlock()
	for _, ln := range l.lines.all {
		for p := ln.first; p != nil; p = p.next {
			n++
		}
	}
	return n
}

// Lines is how many names a Locker keeps track of, and how many of them anybody
// holds or wants.
func Lines(l *Locker) (all, busy int) {
	l.lines.mu.Lock()
	defer l.lines.mu.Unlock()
	for _, ln := range l.lines.all {
		if ln.front != nil {
			busy++
		}
	}
	return len(l.lines.all), busy
}

package sluice

// Held is how many locks a Locker keeps track of.
func Held(l *Locker) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.held)
}

package background

import (
	"sync"
	"time"
)

// Idle is what a [Loop]'s turn returns when there is nothing more to do.
const Idle time.Duration = -1

// Loop is a goroutine that exists while it has something to do. The first [Loop.Wake]
// starts it. It calls its turn function again and again, and ends when a turn returns
// [Idle] and no Wake has come since that turn began.
//
// That order is the reason why the type exists. The owner adds work under its own
// mutex and calls Wake afterwards; the goroutine may at that moment have found nothing
// to do and be about to end. Then it either sees the Wake and takes another turn, or
// has ended, and Wake starts a new one.
type Loop struct {
	spawn  func(f func())
	turn   func() time.Duration
	wakeup chan struct{} // cap 1: ends the pause between two turns

	mu      sync.Mutex // guards what follows
	running bool
	woken   bool // Wake was called since the current turn began
}

// NewLoop returns a loop that does not run yet. Its goroutine is started through spawn,
// for instance a [Group]'s Go. Each turn returns how long to pause before the next one
// (0 for none), or [Idle]. Turns are never concurrent.
func NewLoop(spawn func(f func()), turn func() time.Duration) *Loop {
	return &Loop{spawn: spawn, turn: turn, wakeup: make(chan struct{}, 1)}
}

// Wake makes the loop take a turn now. It never blocks.
func (l *Loop) Wake() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.woken = true
	if l.running {
		Signal(l.wakeup)
		return
	}
	l.running = true
	l.spawn(l.run)
}

func (l *Loop) run() {
	for {
		l.beginTurn()
		switch pause := l.turn(); {
		case pause == Idle:
			if l.end() {
				return
			}
		case pause > 0:
			select {
			case <-l.wakeup:
			case <-time.After(pause):
			}
		}
	}
}

func (l *Loop) beginTurn() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.woken = false
}

// end reports whether the loop has ended: it has not if it was woken meanwhile.
func (l *Loop) end() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.running = l.woken
	return !l.running
}

// Signal puts a signal into c, which has room for one. A signal that is there already
// stands for both.
func Signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// IsClosed reports whether c, on which nothing is sent, has been closed.
func IsClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

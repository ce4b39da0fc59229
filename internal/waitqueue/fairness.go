package waitqueue

import "time"

const (
	// stepBack is by how much a process lets another one go first that has waited for
	// one notification more than itself, and longestStepBack for how many at most.
	stepBack        = 300 * time.Microsecond
	longestStepBack = 5 * time.Millisecond
)

// fairness is what a process remembers of the last time that it gave a name back, to let
// other processes go first.
//
// Redis notifies subscribers in the order in which they subscribed. Of processes that
// simply acquire when they are notified, the oldest two would pass the name to and fro
// between them. So a process counts the notifications since it had the name itself: the
// fewer, the longer it waits before it acquires, and the one that has waited longest comes
// first.
type fairness struct {
	notified int // how many others were notified when the name was given back from here
	received int // how many notifications had come then
}

// headStart is how long the others go first, when the received-th notification has come.
func (f fairness) headStart(received int) time.Duration {
	if received < f.received-1 { // the notifications are counted anew
		return 0
	}
	ahead := max(f.notified-max(received-f.received, 0), 0)
	return min(time.Duration(ahead)*stepBack, longestStepBack)
}

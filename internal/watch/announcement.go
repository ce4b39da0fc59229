package watch

import (
	"fmt"
	"math"
	"time"
)

// announcement is what a message says of the head of a queue.
type announcement struct {
	clients int           // that wait; 0 if the server could not count them
	due     int           // tasks that are due
	off     time.Duration // until the head is due
}

// Of the clients that hear of a task, askers ask for it at once, on average: all of them, if
// there are no more. Then laterAskers ask in the time from firstLater on, in twice that, in four
// times that and so on. None of them asks at once in one of e^askers cases; then a later one
// finds the task after a few milliseconds. So it is if those that ask have stopped or died.
const (
	askers      = 4.0
	laterAskers = 0.5
	firstLater  = time.Millisecond
)

// maxOff is the most that a message may say of the time until the head is due.
const maxOff = 24 * time.Hour

// parseAnnouncement reads a message. One that it does not know is a task that is due now, and
// all clients ask.
func parseAnnouncement(message string) announcement {
	var a announcement
	var us int64
	if n, err := fmt.Sscanf(message, "%d %d %d", &a.clients, &a.due, &us); n != 3 || err != nil || us < 0 {
		return announcement{}
	}
	a.off = time.Duration(min(us, maxOff.Microseconds())) * time.Microsecond
	return a
}

// perTask is how many clients there are for each task.
func (a announcement) perTask() float64 { return float64(max(a.clients, 1)) / float64(max(a.due, 1)) }

// ask returns how long after the head is due this client asks for it, and whether it does so
// within that time at all. u is a random number from 0 to 1.
func (a announcement) ask(u float64, within time.Duration) (after time.Duration, asks bool) {
	rank := u * a.perTask()
	if rank < askers {
		return 0, true
	}
	wait := float64(firstLater) * math.Exp2((rank-askers)/laterAskers)
	return time.Duration(min(wait, float64(within))), wait < float64(within)
}

// callers returns how many of its own callers a client that asks has ask: one, unless there
// are more due tasks than clients that ask.
func (a announcement) callers() int {
	return min(max(int(math.Ceil(askers/a.perTask())), 1), max(a.due, 1))
}

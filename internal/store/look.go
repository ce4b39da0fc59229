package store

import (
	"time"

	"github.com/sluice-go/sluice/internal/redisexec"
)

const (
	// MaxLook is the most queues that one script looks at.
	MaxLook = 100
	// FarOff is what Redis says of a head that is due later, or of none.
	FarOff = time.Hour
)

// Looking is a look at a queue: when is a task due, and has the client a place in line?
type Looking struct {
	*Queue
	Client string        // which takes a place in line; "" for none
	Watch  time.Duration // for how long it is the watchman, if it is
	Leaves bool          // it leaves the line instead, and others see to the head
}

// Look looks at queues of one slot, [MaxLook] at most. Only of several queues may one fail without
// the others, and only at one queue does a client join the line that is not in it.
func (s *Scripts) Look(queues []Looking) redisexec.Request {
	if len(queues) == 1 {
		q := queues[0]
		if q.Leaves {
			q.Client = ">" + q.Client
		}
		return s.Next.Request(q.counts, q.Client, Millis(q.Watch))
	}
	keys, args := make([]any, 0, 3*len(queues)), make([]any, 0, 2*len(queues))
	for _, q := range queues {
		keys, args = append(keys, q.all[0], q.all[pauseKey], q.all[lineKey]), append(args, q.Client, Millis(q.Watch))
	}
	return s.Heads.Request(keys, args...)
}

// Head is what Redis says of the head of a queue, in reply to a claim or a look.
type Head struct {
	Off     time.Duration // until it is due, at most FarOff
	ID      string        // tells it from others; empty if that is not known
	Waiting int           // clients that are in line
	Place   Place         // of this client
	Failed  bool          // it could not be read beside others
}

// Place is what a script says of a client's place in line.
type Place int

// The places. A watchman is in line, too.
const (
	NotAsked Place = iota - 1
	Out
	InLine
	Watchman
	Joined // in line, and was not before
	JoinedAsWatchman
)

// IsIn reports whether the client is in line.
func (p Place) IsIn() bool { return p > Out }

// IsNew reports whether it has joined just now.
func (p Place) IsNew() bool { return p >= Joined }

// IsWatchman reports whether it looks for all that are in line.
func (p Place) IsWatchman() bool { return p == Watchman || p == JoinedAsWatchman }

// headFailed stands for the time of a head that could not be read.
const headFailed = -2

// DecodeHeads reads the answer to a look at n queues.
func DecodeHeads(value any, n int) ([]Head, error) {
	r, heads := newReader(value), make([]Head, n)
	for i := range heads {
		us := r.int()
		heads[i] = Head{
			Off: FarOff, ID: r.text(), Waiting: int(r.int()), Place: Place(r.int()), Failed: us == headFailed,
		}
		if us >= 0 && us < FarOff.Microseconds() {
			heads[i].Off = time.Duration(us) * time.Microsecond
		}
	}
	return heads, r.err()
}

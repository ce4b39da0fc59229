package locks

import (
	"time"

	"github.com/sluice-go/sluice/internal/redisexec"
	"github.com/sluice-go/sluice/internal/store"
)

// Options are those of a lock, within their ranges. Prepare must have been called.
type Options struct {
	Prefix  string        // what the key begins with
	TTL     time.Duration // of the key
	Retry   time.Duration // how often a caller polls that waits
	MaxHold time.Duration // 0 for any time
	MaxWait time.Duration // 0 for as long as the context lets it
	Renew   bool
	Fenced  bool

	Permits int // how many may hold; 0 for 1

	Replicas int // that are to acknowledge an acquisition or extension; 0 for none

	Owner string // stands in front of tokens; "" for none

	Hooks       []Hook
	WatchesLoss bool      // a hook is to be called when the deadline passes
	observer    *observer // of one lock that has hooks, whose options are its own; else nil

	px any // the TTL that a key is taken with for the shortest window, in ms, as an argument of scripts
}

// Prepare computes what is the same for all locks with these options.
func (o *Options) Prepare() { o.px = store.Millis(o.TTL + shortestWindow.margin()) }

// replicaWait is how long replicas are waited for: a part of the TTL, since that runs meanwhile.
func (o *Options) replicaWait() time.Duration { return min(o.TTL/4, redisexec.LongestReplicaWait) }

package sluice

import (
	"fmt"
	"strconv"
	"time"

	"github.com/sluice-go/sluice/internal/redisexec"
)

// fenceLife is how long a name's last fence is remembered. After that the server's clock
// alone makes the next one higher.
const fenceLife = 24 * time.Hour

// fences are those that were reserved with an acquisition. The first is at least the
// server's time in microseconds. Each hand-over takes the fence of its own time, and what
// is left is given back with the lock.
//
// So no fence runs ahead of the server's clock: the n-th is not given out before n
// microseconds have passed since the acquisition was answered. The clock alone then makes
// the next acquisition's fence higher, should the server have forgotten all of them.
type fences struct {
	first int64 // 0 if there are none
	block int64 // how many there are
	since time.Time
}

// last returns the last one as an argument of scripts: it is empty if there are none.
func (f fences) last() any {
	if f.first == 0 {
		return ""
	}
	return f.first + f.block - 1
}

// after takes a fence for the lock that takes over from the one that took the current fence:
// that of the present microsecond or, where that was taken, the next one, when its time has come.
//
// The following one of the block would do as long as one primary gives all fences. After
// a failover two primaries may do so for a while: the other one may have given a higher
// fence meanwhile.
func (f fences) after(current int64) (next int64, ok bool) {
	last := f.first + f.block - 1
	if f.first == 0 || current == last {
		return 0, false
	}
	for range 500 { // a few microseconds; on a fake clock that stands still, in vain
		if now := f.first + time.Since(f.since).Microseconds(); now > current {
			return min(now, last), true
		}
	}
	return 0, false
}

// unusedFences is how many fences are to be given back. Of an acquisition whose reply was
// lost, all. It reads nothing that changes after the acquisition was sent: the sender calls it when
// the caller has left.
func (k *Lock) unusedFences() int64 {
	f := k.grant.fences
	if f.first == 0 {
		return k.grant.window.fences()
	}
	return f.first + f.block - 1 - k.fence
}

// decodeAcquired decodes the reply to an acquisition: how long another holder may still
// keep the lock, or 0 and the fence, if one was asked for.
func decodeAcquired(value any) (left time.Duration, fence int64, err error) {
	switch v := value.(type) {
	case int64:
		if v < 0 {
			return 0, 0, fmt.Errorf("%w: the last fence", ErrCorrupt)
		}
		return duration(v), 0, nil
	case string:
		if fence, err = strconv.ParseInt(v, 10, 64); err == nil && fence > 0 {
			return 0, fence, nil
		}
	}
	return 0, 0, redisexec.Unexpected(value)
}

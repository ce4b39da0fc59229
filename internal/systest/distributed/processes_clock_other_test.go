//go:build !linux

package distributed

import (
	"time"
)

// monotonic is as good as it gets without CLOCK_MONOTONIC: processes share it, and it may
// be set.
func monotonic() time.Duration { return time.Duration(time.Now().UnixNano()) }

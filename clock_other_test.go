//go:build !linux

package sluice_test

import "time"

// monotonic is as good as it gets without CLOCK_MONOTONIC: processes share it, but
// somebody may set it.
func monotonic() time.Duration { return time.Duration(time.Now().UnixNano()) }

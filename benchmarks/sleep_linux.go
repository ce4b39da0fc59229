package main

import (
	"errors"
	"syscall"
	"time"
)

// sleepExactly sleeps with an error of some 0.1 ms. The timers of an idle Go process end up to 1 ms
// late.
func sleepExactly(d time.Duration) {
	left := syscall.NsecToTimespec(d.Nanoseconds())
	err := error(syscall.EINTR)
	for errors.Is(err, syscall.EINTR) { // a signal
		err = syscall.Nanosleep(&left, &left)
	}
}

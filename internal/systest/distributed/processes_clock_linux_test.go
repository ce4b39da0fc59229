package distributed

import (
	"syscall"
	"time"
	"unsafe"
)

// monotonic is a clock that all processes of the machine share and that is never set.
// The monotonic part of a time.Time counts from somewhere else in each process.
func monotonic() time.Duration {
	const clockMonotonic = 1
	var now syscall.Timespec
	if _, _, errno := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clockMonotonic, uintptr(unsafe.Pointer(&now)), 0); errno != 0 {
		panic(errno)
	}
	return time.Duration(now.Nano())
}

package main

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"unsafe"
)

// guard checks that sections never overlap, or no more of them than there are permits. It holds no
// pointers, so that it can lie in memory that processes share.
type guard struct {
	inside   atomic.Int64
	overlaps atomic.Int64
	entries  atomic.Int64
	permits  atomic.Int64 // how many sections may overlap; 0 for one at a time
	plain    int64        // counts entries too, without being atomic; not used if sections may overlap
}

func (g *guard) enter() {
	permits := max(g.permits.Load(), 1)
	if g.inside.Add(1) > permits {
		g.overlaps.Add(1)
	}
	if permits == 1 {
		g.plain++
	}
	g.entries.Add(1)
}

func (g *guard) leave() { g.inside.Add(-1) }

// check returns an error unless every section was exclusive.
func (g *guard) check() error {
	if n := g.overlaps.Load(); n > 0 {
		return fmt.Errorf("NOT EXCLUSIVE: %d of %d sections overlapped", n, g.entries.Load())
	}
	if n := g.entries.Load(); g.permits.Load() <= 1 && g.plain != n {
		return fmt.Errorf("NOT EXCLUSIVE: a plain counter is %d after %d sections", g.plain, n)
	}
	return nil
}

// newSharedGuard makes a guard in a file, for other processes to open by name.
func newSharedGuard() (g *guard, file string, remove func(), err error) {
	f, err := os.CreateTemp("", "benchmarks-guard")
	if err != nil {
		return nil, "", nil, err
	}
	defer func() { _ = f.Close() }()
	if err = f.Truncate(int64(unsafe.Sizeof(guard{}))); err == nil {
		g, err = mapGuard(f)
	}
	if err != nil {
		return nil, "", nil, errors.Join(err, os.Remove(f.Name()))
	}
	return g, f.Name(), func() { _ = os.Remove(f.Name()) }, nil
}

// openSharedGuard opens another process's guard.
func openSharedGuard(file string) (*guard, error) {
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return mapGuard(f)
}

// mapGuard maps the file until the process ends.
func mapGuard(f *os.File) (*guard, error) {
	b, err := syscall.Mmap(int(f.Fd()), 0, int(unsafe.Sizeof(guard{})), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("mmap: %w", err)
	}
	return (*guard)(unsafe.Pointer(&b[0])), nil
}

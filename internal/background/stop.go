package background

import (
	"context"
	"sync"
)

// Start runs functions until stop is called, each in a goroutine of its own. stop ends their
// context, which is made of ctx, and waits until they have returned.
func Start(ctx context.Context, fs ...func(ctx context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	for _, f := range fs {
		running.Go(func() { f(ctx) }) // it ends with ctx, and stop waits for it
	}
	return func() {
		cancel()
		running.Wait()
	}
}

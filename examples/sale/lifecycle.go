package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// serve serves and works until ctx ends, or one of the two fails. The web server stops first, so
// that no request enqueues any more; then the worker gives back what it has not begun, and waits
// for its handlers. The caller closes the database and the Redis client after that.
func serve(ctx context.Context, shop *Shop, listener net.Listener) error {
	server := &http.Server{Handler: shop, ReadHeaderTimeout: 5 * time.Second}
	working, endWork := context.WithCancel(context.WithoutCancel(ctx))
	all, ctx := errgroup.WithContext(ctx)
	all.Go(func() error { return shop.Work(working) }) // ends early only for what no retry mends
	all.Go(func() error {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	all.Go(func() error {
		<-ctx.Done()
		defer endWork()
		stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second)
		defer cancel()
		return server.Shutdown(stopping)
	})
	return all.Wait()
}

// GoZero is a service.Service of go-zero. Its group stops all of its services at the same time, so
// make one of all that has an order: a function like serve, or, if go-zero's server takes the
// requests, the shop's worker.
//
//	group := service.NewServiceGroup()
//	defer group.Stop()
//	group.Add(NewGoZero(shop.Work, logx.Must))
//	group.Add(server) // a rest.Server; its last requests may come after that: Buy and Pay need no Worker
//	group.Start()
//
// go-zero kills the process 5.5s after the signal, of which it waits one: proc.SetTimeToForceQuit
// has to be longer than the Worker's Grace and two seconds.
type GoZero struct {
	run     func(ctx context.Context) error
	failed  func(error)
	ctx     context.Context // Start has none
	cancel  context.CancelFunc
	running sync.Mutex // held while Start runs
}

// NewGoZero returns a service that runs a function. The function's error is given to failed: nil
// for none.
func NewGoZero(run func(ctx context.Context) error, failed func(error)) *GoZero {
	g := &GoZero{run: run, failed: failed}
	g.ctx, g.cancel = context.WithCancel(context.Background())
	return g
}

// Start blocks until the function has returned.
func (g *GoZero) Start() {
	g.running.Lock()
	defer g.running.Unlock()
	g.failed(g.run(g.ctx))
}

// Stop ends the function, and waits for it. It may come before Start, whose function then returns
// at once.
func (g *GoZero) Stop() {
	g.cancel()
	g.running.Lock()   // until Start has returned
	g.running.Unlock() //nolint:staticcheck // SA2001: the wait is all
}

// Kratos is a transport.Server of Kratos, which also stops all of its servers at the same time: see
// GoZero.
//
//	app := kratos.New(
//		kratos.Server(httpServer, NewKratos(shop.Work)),
//		kratos.StopTimeout(10*time.Second), // longer than the Worker's Grace and a second
//	)
//	err := app.Run()
type Kratos struct {
	run     func(ctx context.Context) error
	stopped context.Context
	cancel  context.CancelFunc
	ended   chan struct{} // closed when Start has returned
}

// NewKratos returns a server that runs a function.
func NewKratos(run func(ctx context.Context) error) *Kratos {
	k := &Kratos{run: run, ended: make(chan struct{})}
	k.stopped, k.cancel = context.WithCancel(context.Background())
	return k
}

// Start blocks until the function has returned. Its error ends the application. Kratos calls it
// once.
func (k *Kratos) Start(ctx context.Context) error {
	defer close(k.ended)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(k.stopped, cancel)()
	return k.run(ctx)
}

// Stop ends the function, and waits for it until ctx ends.
func (k *Kratos) Stop(ctx context.Context) error {
	k.cancel()
	select {
	case <-k.ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

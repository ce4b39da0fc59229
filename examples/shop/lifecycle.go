package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sluice-go/sluice/examples/shop/handlers"
	"github.com/sluice-go/sluice/examples/shop/sale"
)

// serve serves and works until ctx ends, or one of the two fails. It stops in this order:
//
//  1. The web server: no request enqueues any more.
//  2. The worker: it gives back what it has not begun, and waits for its handlers.
//  3. The Locker, which the handlers have used.
//
// The caller closes the database and the Redis client after that.
func serve(ctx context.Context, shop *sale.Shop, listener net.Listener) error {
	server := &http.Server{Handler: handlers.New(shop), ReadHeaderTimeout: 5 * time.Second}
	working, endWork := context.WithCancel(context.WithoutCancel(ctx))
	all, ctx := errgroup.WithContext(ctx)
	all.Go(func() error { return shop.Worker().Run(working) }) // ends early only for what no retry mends
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
	return errors.Join(all.Wait(), shop.Close())
}

// GoZero is a service.Service of go-zero. Its group stops all of its services at the same time, so
// make one of all that has an order: a function like serve, or, if go-zero's server takes the
// requests, one that runs the Worker and then closes the Locker.
//
//	group := service.NewServiceGroup()
//	defer group.Stop()
//	group.Add(NewGoZero(func(ctx context.Context) error {
//		return errors.Join(shop.Worker().Run(ctx), shop.Close())
//	}, logx.Must))
//	group.Add(server) // a rest.Server; its last requests may come after that: Buy and Pay need neither Worker nor Locker
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
//		kratos.Server(httpServer, NewKratos(func(ctx context.Context) error { return shop.Worker().Run(ctx) })),
//		kratos.AfterStop(func(context.Context) error { return shop.Close() }), // when all servers have stopped
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

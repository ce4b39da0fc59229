package main

import (
	"context"
	"errors"
	"net"
	"net/http"
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

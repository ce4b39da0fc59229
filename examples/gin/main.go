// Gin is a shop in a gin server: who orders takes a unit of the stock in the step that enqueues the
// order's task, so the last phone is sold once; and a middleware lets one payment of a user run at
// a time, in all processes. It needs a Redis:
//
//	go run -C examples ./gin -redis localhost:6379
//	curl -X POST -H 'X-User: ann' http://127.0.0.1:8082/orders
//	curl -X POST -H 'X-User: ann' http://127.0.0.1:8082/payments
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"os/signal"
	"syscall"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/sluice-go/sluice"
)

const item = "phone"

// Shop sells phones.
type Shop struct {
	Locker *sluice.Locker
	Orders *sluice.Queue
	Ship   sluice.Handler                               // is called for each order that was enqueued
	Charge func(ctx context.Context, user string) error // a payment provider, which takes a while
}

// OnePerUser answers 409 while another request of the user is being handled, in whatever process.
// The context of the request ends if the lock is lost: what the handler does has to obey it.
func OnePerUser(locker *sluice.Locker, scope string) gin.HandlerFunc {
	return func(c *gin.Context) {
		asked := c.Request.Context()
		lock, err := locker.TryLock(asked, scope+":"+c.GetString("user"))
		switch {
		case errors.Is(err, sluice.ErrLocked):
			c.AbortWithStatus(http.StatusConflict)
			return
		case err != nil: // no answer from Redis: the handler was not called
			c.Header("Retry-After", "1")
			c.AbortWithStatus(http.StatusServiceUnavailable)
			return
		}
		defer func() { // also after a panic, and for a client that is gone: Unlock bears a context that has ended
			if err := lock.Unlock(asked); err != nil {
				log.Print("the lock was not held to the end: ", err)
			}
		}()
		ctx, cancel := context.WithCancelCause(asked)
		defer cancel(nil)
		defer context.AfterFunc(lock.Context(), func() { cancel(context.Cause(lock.Context())) })()
		c.Request = c.Request.WithContext(ctx)
		c.Next()
	}
}

// user stands for what knows who asks, such as a session.
func user(c *gin.Context) {
	name := c.GetHeader("X-User")
	if name == "" || len(name) > 100 {
		c.AbortWithStatus(http.StatusUnauthorized)
		return
	}
	c.Set("user", name)
}

// Routes are the shop's.
func (s *Shop) Routes() *gin.Engine {
	r := gin.New()
	r.Use(gin.Recovery(), user)
	r.POST("/orders", s.order)
	r.POST("/payments", OnePerUser(s.Locker, "payment"), s.pay)
	return r
}

// order needs no lock: the server takes the unit and adds the task, or does neither. A user buys
// one, so a repeat after a lost answer does no harm.
func (s *Shop) order(c *gin.Context) {
	outcome, err := s.Orders.Enqueue(c.Request.Context(), sluice.Task{
		ID: item + ":" + c.GetString("user"), Take: sluice.Take{Item: item, Units: 1},
	})
	switch {
	case err != nil: // with ErrUnknown it may have been ordered
		c.Header("Retry-After", "1")
		c.Status(http.StatusServiceUnavailable)
	case outcome == sluice.OutcomeSoldOut:
		c.Status(http.StatusGone)
	case outcome == sluice.OutcomeAdded:
		c.Status(http.StatusAccepted)
	default: // this user has ordered before
		c.Status(http.StatusOK)
	}
}

func (s *Shop) pay(c *gin.Context) {
	if err := s.Charge(c.Request.Context(), c.GetString("user")); err != nil {
		c.Status(http.StatusBadGateway)
		return
	}
	c.Status(http.StatusNoContent)
}

// Run serves and works until ctx ends, or one of the two fails. The server stops first, so that no
// request enqueues any more; then the worker gives back what it has not begun, and waits for its
// handlers. The caller closes the Locker and the client after that.
func (s *Shop) Run(ctx context.Context, listener net.Listener) error {
	server := &http.Server{Handler: s.Routes(), ReadHeaderTimeout: 5 * time.Second}
	worker := &sluice.Worker{Queue: s.Orders, Handler: s.Ship}
	working, endWork := context.WithCancel(context.WithoutCancel(ctx))
	all, ctx := errgroup.WithContext(ctx)
	all.Go(func() error { return worker.Run(working) })
	all.Go(func() error {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	all.Go(func() error {
		<-ctx.Done()
		defer endWork()
		stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		return server.Shutdown(stopping)
	})
	return all.Wait()
}

// NewShop returns a shop. The caller closes its Locker.
func NewShop(ctx context.Context, rdb redis.UniversalClient, units int64) (*Shop, error) {
	locker, err1 := sluice.NewLocker(rdb)
	orders, err2 := sluice.NewQueue(rdb, "orders", sluice.WithDuplicates(sluice.DuplicatesOnce), sluice.WithRetention(24*time.Hour))
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	return &Shop{Locker: locker, Orders: orders, Ship: ship, Charge: charge}, orders.SetStock(ctx, item, units)
}

func ship(_ context.Context, e sluice.Entry) error { fmt.Println("shipped", e.ID); return nil }

// charge stands for a payment provider.
func charge(ctx context.Context, _ string) error {
	select {
	case <-time.After(time.Second):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func main() {
	address := flag.String("redis", "localhost:6379", "`address` of a Redis server")
	web := flag.String("web", "127.0.0.1:8082", "`address` of the web server")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *address, *web); err != nil {
		log.Fatal(err)
	}
}

// run is the process. It closes in the opposite order of what it opens.
func run(ctx context.Context, address, web string) error {
	rdb := redis.NewClient(&redis.Options{Addr: address})
	defer rdb.Close()
	shop, err := NewShop(ctx, rdb, 10)
	if err != nil {
		return err
	}
	defer shop.Locker.Close()
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", web)
	if err != nil {
		return err
	}
	return shop.Run(ctx, listener)
}

package shophttp

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// ByStock is this package's way to sell. Others come from the caller of RunChild and Hold.
const ByStock = "Task.Take"

// What Buy and Pay return besides errors of Redis and of the database.
var (
	ErrSoldOut = errors.New("sold out for now: units that are not paid come back")
	ErrHasOne  = errors.New("one each")
	// ErrOvertaken says that a row is not, or no longer, as a statement requires.
	ErrOvertaken = errors.New("overtaken")
	// ErrNotYet says that the order has no row so far.
	ErrNotYet = errors.New("no such order so far")
)

// Way is how a process sells. Several processes open it on one Site, and may die at any time.
type Way interface {
	// Begin sets the stock. It is called once, before any process sells.
	Begin(ctx context.Context) error
	// End removes from Redis what the sale has left there. It is called when no process sells any
	// more.
	End(ctx context.Context)
	// Buy sells the customer a unit, and returns the order's number. ErrSoldOut, ErrHasOne.
	Buy(ctx context.Context, customer int) (number string, err error)
	// Pay pays an order. ErrNotYet, and ErrOvertaken if it is cancelled.
	Pay(ctx context.Context, number string) error
	// Work cancels orders that are not paid in time, until ctx ends.
	Work(ctx context.Context) error
	// Left returns how many units are left.
	Left(ctx context.Context) (int, error)
	// Close ends what the Way has begun. The Site stays open.
	Close()
}

// Site is what the processes of a sale share.
type Site struct {
	Redis     *redis.Client
	Store     *Store
	Name      string // of the sale: its queue, and its other keys
	Stock     int    // units for sale
	PayWithin time.Duration
}

// OpenWay opens a way to sell.
type OpenWay func(s Site) (Way, error)

func openWay(method string, ways map[string]OpenWay, s Site) (Way, error) {
	if method == ByStock {
		return openStock(s)
	}
	if open := ways[method]; open != nil {
		return open(s)
	}
	return nil, fmt.Errorf("no way to sell: %q", method)
}

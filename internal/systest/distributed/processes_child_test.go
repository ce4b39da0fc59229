package distributed

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/systest"
)

var _ = systest.Role("waiter", wait)

// wait is the role "waiter". It takes the lock named on each line of its standard input,
// prints when it got it, and releases it. A line "keep NAME" makes it keep the lock.
// Its settings are "ADDR TTL RETRY-INTERVAL".
func wait(settings string) {
	var addr string
	var ttl, retry time.Duration
	if _, err := fmt.Sscan(settings, &addr, (*systest.Duration)(&ttl), (*systest.Duration)(&retry)); err != nil {
		panic(err)
	}
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	l, err := sluice.NewLocker(rdb, sluice.WithTTL(ttl), sluice.WithRetryInterval(retry))
	if err != nil {
		panic(err)
	}
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		name, keep := strings.CutPrefix(lines.Text(), "keep ")
		k, err := l.Lock(context.Background(), name)
		if err != nil {
			panic(err)
		}
		fmt.Println(time.Now().UnixNano())
		if !keep {
			if err := k.Unlock(context.Background()); err != nil {
				panic(err)
			}
		}
	}
}

// took waits until a waiter has the lock, and returns when it got it.
func took(c *systest.Child) time.Time {
	var ns int64
	c.Answer(&ns)
	return time.Unix(0, ns)
}

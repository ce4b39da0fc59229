// Package inspect finds what queues and locks there are on a Redis, for operators. Other programs
// know the names of theirs.
//
// It finds them with SCAN, on each primary, in small steps: never with KEYS, and nothing here reads
// a payload or a lock's token.
package inspect

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"
)

// Options say where the queues and locks are. The zero value has the library's own prefixes.
type Options struct {
	// LockPrefix is what the keys of locks begin with. Defaults to "Lock:"; see NoPrefix.
	LockPrefix string
	// QueuePrefix is what the keys of queues begin with. Defaults to "Queue:"; see NoPrefix.
	QueuePrefix string
	// MaxKeys is how many keys a search looks at on each primary, about, before it gives up
	// with ErrIncomplete. Defaults to 20 million, which takes ten seconds or so.
	MaxKeys int
}

// NoPrefix is the prefix of keys that begin with the name.
const NoPrefix = "\x00"

// ErrIncomplete says that a search was ended by a limit: what was found is returned beside it.
var ErrIncomplete = errors.New("not all keys were looked at")

const (
	// scanStep is how many keys the server looks at for one SCAN: under a millisecond.
	scanStep = 1000
	// pipelined is how many commands are sent together.
	pipelined     = 250
	defaultMaxKey = 20_000_000
)

// QueueKeys returns what the keys of queues begin with.
func (o Options) QueueKeys() string { return prefixOr(o.QueuePrefix, "Queue:") }

// LockKeys returns what the keys of locks begin with.
func (o Options) LockKeys() string { return prefixOr(o.LockPrefix, "Lock:") }

func prefixOr(prefix, otherwise string) string {
	switch prefix {
	case "":
		return otherwise
	case NoPrefix:
		return ""
	}
	return prefix
}

// scan calls found with the keys that match a pattern and have a type, "" for any, of all
// primaries: in no order, some more than once. found is called by one goroutine at a time, and
// returns whether to go on.
func scan(ctx context.Context, rdb redis.UniversalClient, o Options, pattern, kind string, found func(keys []string) bool) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var mu sync.Mutex
	enough := errors.New("enough")
	one := func(ctx context.Context, node redis.Cmdable) error {
		steps := max(1, o.MaxKeys/scanStep)
		if o.MaxKeys == 0 {
			steps = defaultMaxKey / scanStep
		}
		for cursor := uint64(0); ; steps-- {
			if steps == 0 {
				return fmt.Errorf("%w: more than %d on one server", ErrIncomplete, max(o.MaxKeys, scanStep))
			}
			look := func() *redis.ScanCmd { return node.ScanType(ctx, cursor, pattern, scanStep, kind) }
			if kind == "" {
				look = func() *redis.ScanCmd { return node.Scan(ctx, cursor, pattern, scanStep) }
			}
			keys, next, err := look().Result()
			if err != nil {
				return err
			}
			mu.Lock()
			goOn := context.Cause(ctx) == nil && (len(keys) == 0 || found(keys))
			if !goOn {
				cancel(enough)
			}
			mu.Unlock()
			if cursor = next; cursor == 0 || !goOn {
				return nil
			}
		}
	}
	var err error
	if cluster, ok := rdb.(*redis.ClusterClient); ok {
		err = cluster.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error { return one(ctx, node) })
	} else {
		err = one(ctx, rdb)
	}
	if errors.Is(context.Cause(ctx), enough) {
		return nil
	}
	return err
}

var globs = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`)

// Literal returns the pattern that matches a text and nothing else.
func Literal(text string) string { return globs.Replace(text) }

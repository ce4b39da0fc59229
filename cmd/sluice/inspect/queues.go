package inspect

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/keyspace"
)

// Queues finds the queues, and returns their names in order. A queue is found if there is any key
// of it: one whose tasks have all died or are finished and remembered, or one that is empty and
// paused or has limits, too. One that is empty otherwise has no key a day after the last task or
// Worker. What stands beside ErrIncomplete was found before the search was ended.
//
// It takes a SCAN for each thousand keys of a primary, whatever they are. A client of one node of a
// Cluster is an error, each time: it may have been away when the client was made.
func Queues(ctx context.Context, rdb redis.UniversalClient, o Options) ([]string, error) {
	if IsClusterNode(ctx, rdb, o) {
		return nil, errClusterNode
	}
	prefix := o.QueueKeys()
	mains := map[string]bool{} // whether there is more of it than its main key
	pattern := "*" + Literal(prefix) + "*"
	incomplete := scan(ctx, rdb, o, pattern, "", func(keys []string) bool {
		for _, key := range keys {
			if main, companion, ok := ownerOf(prefix, key); ok {
				mains[main] = mains[main] || companion
			}
		}
		return true
	})
	if incomplete != nil && !errors.Is(incomplete, ErrIncomplete) {
		return nil, wrap("search for queues", incomplete)
	}
	if err := dropForeign(ctx, rdb, mains); err != nil {
		return nil, wrap("search for queues", err)
	}
	names := slices.Sorted(maps.Keys(mains))
	for i, main := range names { // all begin with the prefix, which keeps their order
		names[i] = strings.TrimPrefix(main, prefix)
	}
	return names, wrap("search for queues", incomplete)
}

// PauseBehind returns for how long no search is to follow one that took so long: beside many keys a server is
// to have other things to do.
func PauseBehind(took time.Duration) time.Duration { return min(20*took, 15*time.Minute) }

var errClusterNode = errors.New("search for queues: this is a node of a Cluster, and has a part of them: connect to the Cluster (--cluster)")

// endings of the keys beside a queue's main key.
var endings = []string{
	keyspace.Tasks, keyspace.State, keyspace.Dead, keyspace.Leased, keyspace.Paused, keyspace.Errors,
	keyspace.Counts, keyspace.Workers, keyspace.Done, keyspace.Results, keyspace.Stock, keyspace.Groups,
}

// ownerOf returns the main key of the queue that has a key, and whether the key is another than
// that: a companion.
func ownerOf(prefix, key string) (main string, companion, ok bool) {
	main = key
	if keyspace.HasHashTag(key) {
		for _, ending := range endings {
			if rest, found := strings.CutSuffix(key, ending); found {
				main, companion = rest, true
				break
			}
		}
		if inner, found := strings.CutPrefix(main, "{"); companion && found && strings.IndexByte(inner, '}') == len(inner)-1 {
			main = inner[:len(inner)-1]
		}
	}
	name, found := strings.CutPrefix(main, prefix)
	if !found {
		return "", false, false
	}
	_, err := keyspace.Key(prefix, name)
	return main, companion, err == nil
}

// dropForeign takes away what is not a queue's: a key that looks like a main key, has nothing
// beside it, and is no sorted set.
func dropForeign(ctx context.Context, rdb redis.UniversalClient, mains map[string]bool) error {
	var alone []string
	for main, companion := range mains {
		if !companion {
			alone = append(alone, main)
		}
	}
	for part := range slices.Chunk(alone, pipelined) {
		p := rdb.Pipeline()
		kinds := make([]*redis.StatusCmd, len(part))
		for i, main := range part {
			kinds[i] = p.Type(ctx, main)
		}
		if _, err := p.Exec(ctx); err != nil {
			return err
		}
		for i, main := range part {
			if kinds[i].Val() != "zset" {
				delete(mains, main)
			}
		}
	}
	return nil
}

// Exists reports whether there is any key of a queue. One that has none is empty, or its name is
// wrong. The error is also sluice.ErrInvalidName.
func Exists(ctx context.Context, rdb redis.UniversalClient, name string, o Options) (bool, error) {
	main, err := keyspace.Key(o.QueueKeys(), name)
	if err != nil {
		return false, fmt.Errorf("%w: %w", sluice.ErrInvalidName, err)
	}
	keys := []string{main}
	for _, ending := range endings {
		keys = append(keys, keyspace.Companion(main, ending))
	}
	n, err := rdb.Exists(ctx, keys...).Result()
	return n > 0, wrap("queue", err)
}

// Open returns the named queue. It sends nothing. The errors are those of sluice.NewQueue.
func Open(rdb redis.UniversalClient, name string, o Options) (*sluice.Queue, error) {
	return sluice.NewQueue(rdb, name, sluice.WithQueuePrefix(o.QueueKeys()))
}

func wrap(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}

package inspect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/keyspace"
)

// QueueInfo is a queue that was found.
type QueueInfo struct {
	Name string
	// Shards is over how many shards it is spread.
	Shards int
}

// Queues finds the queues, in the order of their names. A queue is found if there is any key of it: one whose tasks
// have all died or are finished and remembered, or one that is empty and paused or has limits, too. One that is empty otherwise has no key a day after the last
// task or Worker, unless it has several shards. What stands beside ErrIncomplete was found before the search was ended.
//
// It takes a SCAN for each thousand keys of a primary, whatever they are.
func Queues(ctx context.Context, rdb redis.UniversalClient, o Options) ([]QueueInfo, error) {
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
	infos, err := readShards(ctx, rdb, slices.Collect(maps.Keys(mains)))
	if err != nil {
		return nil, wrap("search for queues", err)
	}
	for i := range infos {
		infos[i].Name = strings.TrimPrefix(infos[i].Name, prefix)
	}
	slices.SortFunc(infos, func(a, b QueueInfo) int { return cmp.Compare(a.Name, b.Name) })
	if incomplete != nil {
		return infos, wrap("search for queues", incomplete)
	}
	return infos, nil
}

// endings of the keys beside a queue's main key.
var endings = []string{
	keyspace.Tasks, keyspace.State, keyspace.Dead, keyspace.Leased, keyspace.Paused, keyspace.Errors, keyspace.Counts, keyspace.Workers, keyspace.Layout,
	keyspace.Done, keyspace.Results,
}

// ownerOf returns the main key of the queue that has a key, and whether it is another than that: a companion,
// or a shard's.
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
	if queue, isShard := keyspace.ShardOf(main); isShard {
		main, companion = queue, true
	}
	name, found := strings.CutPrefix(main, prefix)
	if !found {
		return "", false, false
	}
	_, err := keyspace.Key(prefix, name)
	return main, companion, err == nil
}

// dropForeign takes away what is not a queue's: a key that looks like a main key, has nothing beside it, and is
// no sorted set.
func dropForeign(ctx context.Context, rdb redis.UniversalClient, mains map[string]bool) error {
	var alone []string
	for main, companion := range mains {
		if !companion {
			alone = append(alone, main)
		}
	}
	return pipeline(ctx, rdb, alone,
		func(p redis.Pipeliner, main string) redis.Cmder { return p.Type(ctx, main) },
		func(main string, result redis.Cmder) error {
			kind, err := result.(*redis.StatusCmd).Result()
			if err == nil && kind != "zset" {
				delete(mains, main)
			}
			return err
		})
}

// readShards reads how many shards queues have, by their main keys.
func readShards(ctx context.Context, rdb redis.UniversalClient, mains []string) ([]QueueInfo, error) {
	infos := make([]QueueInfo, 0, len(mains))
	err := pipeline(ctx, rdb, mains,
		func(p redis.Pipeliner, main string) redis.Cmder {
			return p.HGet(ctx, keyspace.Companion(main, keyspace.Layout), "shards")
		},
		func(main string, result redis.Cmder) error {
			text, err := result.(*redis.StringCmd).Result()
			if err != nil && !errors.Is(err, redis.Nil) {
				return err
			}
			n, _ := strconv.Atoi(text)
			infos = append(infos, QueueInfo{Name: main, Shards: max(1, n)})
			return nil
		})
	return infos, err
}

// Find reads how many shards a queue has, and whether there is any key of it. A queue that has none is
// empty, or its name is wrong. The error is also sluice.ErrInvalidName.
func Find(ctx context.Context, rdb redis.UniversalClient, name string, o Options) (info QueueInfo, exists bool, err error) {
	main, err := keyspace.Key(o.QueueKeys(), name)
	if err != nil {
		return QueueInfo{}, false, fmt.Errorf("%w: %w", sluice.ErrInvalidName, err)
	}
	infos, err := readShards(ctx, rdb, []string{main})
	if err != nil {
		return QueueInfo{}, false, wrap("queue", err)
	}
	keys := []string{main}
	for _, ending := range endings {
		keys = append(keys, keyspace.Companion(main, ending))
	}
	n, err := rdb.Exists(ctx, keys...).Result()
	infos[0].Name = name
	return infos[0], n > 0, wrap("queue", err)
}

// Open returns the named queue, with as many shards as it has. opts are more of its options. The errors are those of
// sluice.NewQueue, of Redis and of the network.
func Open(ctx context.Context, rdb redis.UniversalClient, name string, o Options, opts ...sluice.QueueOption) (*sluice.Queue, error) {
	main, err := keyspace.Key(o.QueueKeys(), name)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", sluice.ErrInvalidName, err)
	}
	infos, err := readShards(ctx, rdb, []string{main})
	if err != nil {
		return nil, wrap("queue", err)
	}
	infos[0].Name = name
	return OpenAs(rdb, infos[0], o, opts...)
}

// OpenAs returns a queue that was found. It sends nothing.
func OpenAs(rdb redis.UniversalClient, info QueueInfo, o Options, opts ...sluice.QueueOption) (*sluice.Queue, error) {
	opts = append([]sluice.QueueOption{sluice.WithQueuePrefix(o.QueueKeys()), sluice.WithShards(info.Shards)}, opts...)
	return sluice.NewQueue(rdb, info.Name, opts...)
}

func wrap(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}

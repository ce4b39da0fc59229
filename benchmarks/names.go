package main

import (
	"context"
	"time"
)

// names measures many locks, each wanted by one goroutine only.
func names() scenario {
	return scenario{
		name:    "names",
		about:   "64 goroutines, each on a name of its own",
		measure: perSecond,
		entries: enter(sluiceName, floorName, "redislock", "redsync", "rueidislock"),
		length:  2 * time.Second,
		columns: []column{commandsColumn, allocsColumn},
		turn:    func(ctx context.Context, t turn) (result, error) { return namesTurn(ctx, t, 64) },
	}
}

// manyNames is names with so many goroutines that batching of commands pays.
func manyNames() scenario {
	return scenario{
		name:    "names-1000",
		about:   "1,000 goroutines, each on a name of its own, on a client that batches commands and on one that does not",
		measure: perSecond,
		entries: enter(sluiceName+" on AutoPipeline", sluiceName, floorName+" on AutoPipeline", floorName,
			"redislock on AutoPipeline", "redsync on AutoPipeline", "rueidislock"),
		length:  2 * time.Second,
		columns: []column{commandsColumn, allocsColumn},
		turn:    func(ctx context.Context, t turn) (result, error) { return namesTurn(ctx, t, 1000) },
	}
}

// clusterNames is names on a Redis Cluster.
func clusterNames() scenario {
	return scenario{
		name:    "names-cluster",
		about:   "64 goroutines, each on a name of its own, on a Cluster of 3 primaries with a replica each",
		measure: perSecond,
		entries: []entrant{
			{name: sluiceName, settings: "defaults", open: onCluster(newSluice)},
			{name: floorName, settings: floorSettings, open: onCluster(newFloor)},
			{name: "redislock", settings: redislockSettings, open: onCluster(newRedislock)},
		},
		length: 2 * time.Second,
		turn:   func(ctx context.Context, t turn) (result, error) { return namesTurn(ctx, t, 64) },
	}
}

// onCluster opens a contender on the Cluster.
func onCluster(open onRedis) func(setup) (contender, error) {
	return func(s setup) (contender, error) {
		rdb, err := s.cluster.client()
		if err != nil {
			return nil, err
		}
		return own(open, rdb, s, rdb.Close)
	}
}

func namesTurn(ctx context.Context, t turn, size int) (result, error) {
	names := make([]string, size)
	for i := range names {
		names[i] = uniqueName("names")
	}
	work := team{
		contender: t.contender, size: size, length: t.length,
		name: func(member int) string { return names[member] },
	}.work(ctx)
	return result{
		value:    float64(work.sections()) / t.length.Seconds(),
		ops:      float64(work.sections()),
		waits:    work.waits,
		failures: work.Failures,
	}, nil
}

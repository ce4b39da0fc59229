package main

import "context"

// serverTime measures what the server takes for a task from its claim to its end.
func serverTime() scenario {
	return scenario{
		name:    "server-time",
		about:   "200000 tasks due, 64 handlers at once that do nothing: the server's time for the commands of a task, by INFO commandstats",
		measure: duration,
		entries: enterQueues(sluiceName, floorName, floorName+", ZPOPMIN"),
		columns: []column{serverCPUColumn, scriptsColumn, commandsColumn, {"tasks/s", median, whole}},
		turn:    serverTimeTurn,
	}
}

func serverTimeTurn(ctx context.Context, t turn) (result, error) {
	r, err := workTurn(ctx, t, 64, 200_000)
	if err != nil {
		return result{}, err
	}
	u, err := t.meter.read(ctx)
	r.extra = map[string]float64{"tasks/s": r.value}
	r.value = u.serverTime() / r.ops
	return r, err
}

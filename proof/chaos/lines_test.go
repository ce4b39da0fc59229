package main

import (
	"testing"
	"time"

	"github.com/Shopify/toxiproxy/v2/stream"
	"github.com/stretchr/testify/require"
)

// The processes of lineCases. Those that have joined the line of a final lock have lived to the
// end.
const (
	one, two, three = "AAAAAAAAAAAA", "BBBBBBBBBBBB", "*CCCCCCCCCCCC"

	oneJoins   = "ZADD {Lock:n}:line 1000 " + one + ":1:50; PEXPIREAT {Lock:n}:line @60010"
	twoJoins   = "ZADD {Lock:n}:line 2000 " + two + ":1:50"
	threeJoins = "ZADD {Lock:n}:line 3000 " + three + ":1:50"
	oneLives   = "ZADD {Lock:hot0.final}:line 9000 " + one + ":7:50; PEXPIREAT {Lock:hot0.final}:line @60010; ZREM {Lock:hot0.final}:line " + one + ":7:50"
)

// lineCases are about the lines of locks.
var lineCases = map[string]checkCase{
	"processes join a line, and are woken": {newScenario().
		at(10).logs(oneJoins).logs(twoJoins).logs(threeJoins).
		at(20).logs("ZREM {Lock:n}:line " + one + ":1:50").
		at(30).logs("ZREM {Lock:n}:line " + three + ":1:50; ZREM {Lock:n}:line " + two + ":1:50").logs(oneLives), ""},
	"a release skips the dead": {newScenario().
		at(10).logs(oneJoins).logs(twoJoins).logs(threeJoins).
		at(20).logs("ZREM {Lock:n}:line " + one + ":1:50; ZREM {Lock:n}:line " + two + ":1:50; ZREM {Lock:n}:line " + three + ":1:50"), ""},
	"a release wakes another one than the first": {newScenario().
		at(10).logs(oneJoins).logs(twoJoins).logs(threeJoins).
		at(20).logs("ZREM {Lock:n}:line " + two + ":1:50; ZREM {Lock:n}:line " + three + ":1:50"), "2 left in one step"},
	"one that was not in line leaves": {newScenario().
		at(10).logs(oneJoins).logs("ZREM {Lock:n}:line " + two + ":1:50"), "had no entry"},
	"a process has its old place again": {newScenario().
		at(10).logs(oneJoins).logs(twoJoins).logs("ZREM {Lock:n}:line " + one + ":1:50").logs("ZADD {Lock:n}:line 1000 " + one + ":2:50"), ""},
	"a process joins before another one": {newScenario().
		at(10).logs(twoJoins + "; PEXPIREAT {Lock:n}:line @60010").logs(oneJoins), "joined by " + one},
	"an entry joins again": {newScenario().at(10).logs(oneJoins).logs(oneJoins), "joined again"},
	"an entry without a process": {newScenario().
		at(10).logs("ZADD {Lock:n}:line 1000 x; PEXPIREAT {Lock:n}:line @60010"), "has an entry"},
	"a line without a TTL":    {newScenario().at(10).logs(twoJoins), "no TTL"},
	"a line with a long TTL":  {newScenario().at(10).logs(twoJoins + "; PEXPIREAT {Lock:n}:line @90000"), "too late"},
	"a line that is deleted":  {newScenario().at(10).logs(oneJoins).logs("DEL {Lock:n}:line"), "before its end"},
	"a line that ends":        {lasting(70_000).at(10).logs(oneJoins).at(60_020).logs("DEL {Lock:n}:line").logs(oneLives), ""},
	"a line that is over":     {lasting(70_000).at(10).logs(oneJoins).logs(oneLives), ""},
	"a line of another type":  {newScenario().at(10).logs("HSET {Lock:n}:line a b"), "changed by HSET"},
	"a killed process stays":  {newScenario().at(10).logs(oneJoins), ""},
	"a process stays in line": {newScenario().at(10).logs(oneJoins).logs(oneLives), "does not wait"},
	"an entry comes back when data is lost": {newScenario().
		at(10).logs(oneJoins).at(15).logs("ZREM {Lock:n}:line " + one + ":1:50").at(20).lost(1).at(40).logs(oneLives), ""},
	"an entry comes back, and its process joins and stays": {newScenario().
		at(10).logs(oneJoins).at(15).logs("ZREM {Lock:n}:line " + one + ":1:50").at(20).lost(1).
		at(40).logs("ZREM {Lock:n}:line " + one + ":1:50").at(41).logs(oneJoins).logs(oneLives), "does not wait"},
}

// queueLineCases are about the lines of queues.
var queueLineCases = map[string]checkCase{
	"clients join and leave, and the tasks stay": {newScenario().
		at(10).enqueued("v", 20).logs(clientJoins).logs("ZADD {Queue:loop}:line -9000 "+two).claimed("v", 1, 30).
		at(31).logs("ZREM {Queue:loop}:line "+two).logs("ZADD {Queue:loop}:line XX 5 "+one).logs("ZREM {Queue:loop}:line "+one).
		at(40).logs(gone).settled(opDequeue, "", 430, 0, done), ""},
	"an entry that is no client's": {newScenario().at(10).logs("ZADD {Queue:loop}:line 1000 x; PEXPIREAT {Queue:loop}:line @60010"), "has a new entry"},
	"two watchmen": {newScenario().
		at(10).logs(clientJoins).logs("ZADD {Queue:loop}:line -9000 " + one).logs("ZADD {Queue:loop}:line -8000 " + two), "has 2 watchmen"},
	"a client leaves that is not in line": {newScenario().at(10).logs(clientJoins).logs("ZREM {Queue:loop}:line " + two), "had no entry"},
	"a queue's line without a TTL":        {newScenario().at(10).logs("ZADD {Queue:loop}:line 1000 " + one), "no TTL"},
	"a queue's line with a long TTL":      {newScenario().at(10).logs("ZADD {Queue:loop}:line 1000 " + one + "; PEXPIREAT {Queue:loop}:line @90000"), "too late"},
	"a queue's line that is deleted":      {newScenario().at(10).logs(clientJoins).logs("DEL {Queue:loop}:line"), "before its end"},
	"a queue's line that ends":            {lasting(70_000).at(10).logs(clientJoins).at(60_020).logs("DEL {Queue:loop}:line"), ""},
	"a queue's line of another type":      {newScenario().at(10).logs("HSET {Queue:loop}:line a b"), "changed by HSET"},
}

const clientJoins = "ZADD {Queue:loop}:line 1000 " + one + "; PEXPIREAT {Queue:loop}:line @60010"

func TestFirst_IsThatOfTheLeastScore(t *testing.T) {
	t.Parallel()
	require.Empty(t, first(nil))
	require.Equal(t, "b", first(map[string]float64{"a": 2, "b": 1, "c": 1}))
}

// TestLoseMessages_LosesNothingElse that a server sends on the same connection.
func TestLoseMessages_LosesNothingElse(t *testing.T) {
	t.Parallel()
	const (
		subscribed = ">3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n"
		sharded    = "*3\r\n$10\r\nssubscribe\r\n$1\r\nc\r\n:1\r\n"
		pong       = ">2\r\n$4\r\npong\r\n$0\r\n\r\n"
		published  = ">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$5\r\nhello\r\n"
		spublished = "*3\r\n$8\r\nsmessage\r\n$1\r\nc\r\n$0\r\n\r\n"
	)
	chunk := &stream.StreamChunk{Data: []byte(published + subscribed + spublished + published + sharded + pong), Timestamp: time.Now()}
	require.EqualValues(t, 3, loseMessages(chunk))
	require.Equal(t, subscribed+sharded+pong, string(chunk.Data))
	require.Zero(t, loseMessages(chunk))
	for data, is := range map[string]bool{subscribed: true, pong + sharded: true, published: false, "$9\r\nsubscribe\r\n": false} {
		require.Equal(t, is, subscription.MatchString(data), data)
	}
}

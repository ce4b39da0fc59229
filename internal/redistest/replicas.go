package redistest

import (
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// Replicated is a primary with replicas that nothing watches: none of them takes over.
type Replicated struct {
	*Server
	Replicas []*Server
}

// StartReplicated starts a primary with n replicas for one test, waits until they have all its
// data, and stops them when the test ends.
func StartReplicated(t testing.TB, n int) *Replicated {
	t.Helper()
	NotShort(t)
	g := &Replicated{Server: Start(t, "--repl-diskless-sync-delay", "0")}
	host, port, _ := net.SplitHostPort(g.Addr)
	for range n {
		g.Replicas = append(g.Replicas, Start(t, "--replicaof", host, port))
	}
	for _, replica := range g.Replicas {
		g.AwaitReplica(t, replica)
	}
	return g
}

// AwaitReplica waits until a replica has all data of the primary, and has told it so.
func (g *Replicated) AwaitReplica(t testing.TB, replica *Server) {
	t.Helper()
	if err := eventually("replica", replica.inSync); err != nil {
		t.Fatal(err)
	}
	online := func() (bool, error) {
		state, err := g.replicaState(replica)
		return state == "online", err
	}
	if err := eventually("online replica", online); err != nil {
		t.Fatal(err)
	}
}

// Direct returns a client of this one server, closed when the test ends: a replica's tells
// what the replica has.
func (s *Server) Direct(t testing.TB) *redis.Client {
	t.Helper()
	rdb := s.directFor(10 * time.Second)
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// replicaState returns what the primary says of a replica: "online" once it counts for WAIT.
func (g *Replicated) replicaState(replica *Server) (string, error) {
	for i := range g.Replicas {
		text, err := g.field("slave" + strconv.Itoa(i))
		if err != nil {
			return "", err
		}
		if strings.Contains(text, "port="+replica.port()+",") {
			_, rest, _ := strings.Cut(text, "state=")
			state, _, _ := strings.Cut(rest, ",")
			return state, nil
		}
	}
	return "", nil
}

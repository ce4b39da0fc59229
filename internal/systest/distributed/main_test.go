// Package distributed tests the library on several servers and in several processes. The names of
// its files begin with their subject:
//
//   - builds: the build of now beside the build before, whose processes share locks and a queue
//   - failover: a primary fails, behind Sentinel or on a Cluster, or slots of a Cluster move
//   - partition: links are cut between clients, a primary, its replicas and sentinels
//   - processes: processes of one machine share locks and queues; some are killed or stopped
//   - replicas: what counts once replicas have acknowledged it
//
// They are one package because they are one program then: with -short nearly all of them are left
// out, and each program takes seconds to link.
package distributed

import (
	"testing"

	"github.com/sluice-go/sluice/internal/systest"
)

func TestMain(m *testing.M) { systest.Main(m) }

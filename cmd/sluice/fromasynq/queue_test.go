package fromasynq_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/cmd/sluice/fromasynq"
	"github.com/sluice-go/sluice/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// TestQueue_ReadsWhatAsynqsInspectorReads, of tasks with random properties, and lists each once.
func TestQueue_ReadsWhatAsynqsInspectorReads(t *testing.T) {
	server := redistest.Start(t)
	opt := asynq.RedisClientOpt{Addr: server.Addr}
	client, inspector := asynq.NewClient(opt), asynq.NewInspector(opt)
	defer func() { require.NoError(t, client.Close()) }()
	defer func() { require.NoError(t, inspector.Close()) }()
	ctx, q := t.Context(), fromasynq.Open(server.Client(t), "default")
	const n = 3000
	want := map[string]*asynq.TaskInfo{}
	for i := range n {
		opts := []asynq.Option{asynq.TaskID(fmt.Sprint(i)), asynq.MaxRetry(rand.IntN(200))}
		for _, o := range []asynq.Option{
			asynq.Timeout(time.Duration(rand.IntN(9999)) * time.Second), asynq.Deadline(time.Now().Add(time.Hour)),
			asynq.Retention(time.Hour), asynq.Unique(time.Hour), asynq.ProcessIn(time.Hour),
		} {
			if rand.IntN(2) == 0 {
				opts = append(opts, o)
			}
		}
		var headers map[string]string
		if i%3 == 0 {
			headers = map[string]string{"a": "", "": "b", fmt.Sprint(i): "c"}
		}
		payload := make([]byte, rand.IntN(300))
		for k := range payload {
			payload[k] = byte(rand.Uint32())
		}
		info, err := client.Enqueue(asynq.NewTaskWithHeaders(fmt.Sprint("kind", i), payload, headers), opts...)
		require.NoError(t, err)
		want[info.ID] = info
		if i%7 == 0 {
			require.NoError(t, inspector.ArchiveTask("default", info.ID))
		}
	}
	var ids []string
	for _, s := range fromasynq.States {
		require.NoError(t, q.IDs(ctx, s, func(id string) { ids = append(ids, id) }))
	}
	require.Len(t, ids, n)
	tasks, err := q.Read(ctx, append(ids, "none"))
	require.NoError(t, err)
	require.Len(t, tasks, n)
	for _, got := range tasks {
		require.NoError(t, got.Err)
		info, err := inspector.GetTaskInfo("default", got.ID)
		require.NoError(t, err)
		require.Equal(t,
			[]any{info.ID, info.Type, string(info.Payload), info.MaxRetry, info.Retried, info.LastErr, info.Timeout, info.Deadline.Unix(), info.Retention, info.Group, info.State.String(), info.LastFailedAt},
			[]any{got.ID, got.Type, string(got.Payload), got.Retry, got.Retried, got.LastError, got.Timeout, got.Deadline.Unix(), got.Retention, got.Group, string(got.State), got.LastFailed})
		require.Len(t, got.Headers, len(info.Headers))
		for k, v := range info.Headers {
			require.Equal(t, v, got.Headers[k])
		}
		if got.State == fromasynq.Scheduled {
			require.True(t, info.NextProcessAt.Equal(got.At))
		} else {
			require.WithinDuration(t, time.Now(), got.At, time.Minute)
		}
		delete(want, got.ID)
	}
	require.Empty(t, want)
}

// FuzzDecode_AnyBytes: whatever is stored, it ends, with a task or an error.
func FuzzDecode_AnyBytes(f *testing.F) {
	f.Add("\x0a\x01k\x12\x01p\x1a\x02id\x22\x07default\x28\x19")
	f.Add("\x7a\x04\x0a\x00\x12\x00")
	f.Add("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01")
	f.Fuzz(func(t *testing.T, stored string) {
		_, _ = fromasynq.Decode(stored)
	})
}

package sluice

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/sluice-go/sluice/internal/redisexec"
	"github.com/sluice-go/sluice/internal/store"
	"github.com/sluice-go/sluice/internal/taskloop"
)

// workerSource is a Queue as a worker's run loop sees it: a taskloop.Source. It builds the requests and
// decodes the replies.
type workerSource struct {
	queue *Queue
	lease time.Duration
	id    string // of the worker
}

// tellCanceled has the IDs of tasks told that are cancelled while they are leased, and returns what ends that.
func (q *Queue) tellCanceled(to chan string) (end func()) {
	listener := q.client.Notifier.JoinMessages(to, q.store.CanceledChannel())
	return func() { q.client.Notifier.Leave(q.store.CanceledChannel(), listener) }
}

// Exchange sends reports and a claim in one pipeline. Tasks are finished by the script that
// claims. If the server rejects that, there is one script for each: to be denied what claims is
// no reason not to finish.
//
// Nothing bounds it here: the run loop gives up the wait for it.
func (s *workerSource) Exchange(reports []taskloop.Report, claim int) ([]taskloop.ReportResult, taskloop.ClaimResult) {
	q, results := s.queue, make([]taskloop.ReportResult, len(reports))
	requests := make([]redisexec.Request, 0, len(reports)+1)
	var finish []store.Item // tasks that the claim's script finishes,
	joined := -1            // which this report is of
	for i, r := range reports {
		if r.Settler == store.ByExchange && claim > 0 {
			finish, joined = r.Items, i
		} else {
			requests = append(requests, q.store.Report(r.Items))
		}
	}
	if claim > 0 {
		requests = append(requests, q.claiming(finish, claim, s.lease, s.id))
	}
	defer q.executor.Suspect()()
	mark, sent := q.watcher.Mark(), time.Now()
	answers := q.executor.SendAll(context.Background(), requests)
	claimed := answers[len(answers)-1]
	if finish != nil && claimed.Outcome == redisexec.Rejected {
		apart := q.executor.SendAll(context.Background(), []redisexec.Request{
			q.store.Report(finish), q.claiming(nil, claim, s.lease, s.id),
		})
		answers, claimed = slices.Insert(answers, joined, apart[0]), apart[1]
		finish, joined = nil, -1
	}
	var x store.Exchanged[store.Task]
	result := taskloop.ClaimResult{Outcome: claimed.Outcome, Err: claimed.Err}
	if claim > 0 && claimed.Outcome == redisexec.Done {
		x, result.Err = store.DecodeExchange(claimed.Value, len(finish), store.AsTask)
	}
	for i, r := range reports {
		if i == joined {
			results[i] = taskloop.ReportResult{Outcome: result.Outcome, Answers: x.Answers, Err: result.Err}
			continue
		}
		results[i], answers = s.decodeReport(answers[0], r.Items), answers[1:]
	}
	switch {
	case claim == 0:
		return results, taskloop.ClaimResult{}
	case result.Err != nil:
		result.Err = fmt.Errorf("claim: %w", result.Err)
		return results, result
	}
	q.watcher.Claimed(mark, sent, x.Head, len(x.Tasks) > 0)
	q.noteClaimedTasks(x.Tasks)
	result.Tasks, result.More, result.Limited, result.Receipt, result.Head = x.Tasks, x.More, x.Limited, x.Receipt, x.Next
	return results, result
}

// decodeReport says what became of tasks whose leases were to end.
func (s *workerSource) decodeReport(answer redisexec.Result, items []store.Item) taskloop.ReportResult {
	result := taskloop.ReportResult{Outcome: answer.Outcome, Err: answer.Err}
	if answer.Outcome == redisexec.Done {
		result.Answers, result.Err = store.DecodeReport(answer.Value, items)
	}
	return result
}

// Extend extends leases by one script.
func (s *workerSource) Extend(ctx context.Context, items []store.Item) taskloop.ReportResult {
	r := s.queue.store.Extend(s.lease, items...)
	r.Bounded = true
	reply, err := s.queue.executor.Run(ctx, r)
	if err != nil {
		return taskloop.ReportResult{Outcome: redisexec.Unknown, Err: err}
	}
	result := taskloop.ReportResult{Outcome: redisexec.Done}
	result.Answers, result.Err = store.DecodeExtended(reply.Value, len(items))
	return result
}

// Wait waits until a task may be due.
func (s *workerSource) Wait(ctx context.Context) error {
	return wrap("wait", s.queue.name, s.queue.watcher.Wait(ctx, s.queue.options.poll))
}

// Start runs a job in a goroutine of the executor's.
func (s *workerSource) Start(job redisexec.Job) { s.queue.executor.Start(job) }

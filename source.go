package sluice

import (
	"context"
	"fmt"
	"time"

	"github.com/sluice-go/sluice/internal/redisexec"
	"github.com/sluice-go/sluice/internal/taskloop"
)

// source is a Queue as a worker's run loop sees it: a taskloop.Source. It builds the
// requests and decodes the replies.
type source struct {
	queue *Queue
	lease time.Duration
}

// Exchange sends reports and a claim in one pipeline.
func (s *source) Exchange(reports []taskloop.Report, claim int) ([]taskloop.ReportResult, taskloop.ClaimResult) {
	requests := make([]redisexec.Request, 0, len(reports)+1)
	for _, r := range reports {
		requests = append(requests, s.reportRequest(r))
	}
	if claim > 0 {
		requests = append(requests, s.queue.claimRequest(claim, s.lease))
	}
	mark, sent := s.queue.watcher.mark(), time.Now()
	answers := s.queue.executor.SendAll(context.Background(), requests)
	results := make([]taskloop.ReportResult, len(reports))
	for i, r := range reports {
		results[i] = decodeReport(answers[i], len(r.Items))
	}
	if claim == 0 {
		return results, taskloop.ClaimResult{}
	}
	claimed := decodeClaim(answers[len(reports)])
	if claimed.Outcome == redisexec.Done && claimed.Err == nil {
		s.queue.watcher.claimed(mark, sent, answers[len(reports)].Value, len(claimed.Tasks))
	}
	return results, claimed
}

// reportRequest returns the request of a report.
func (s *source) reportRequest(r taskloop.Report) redisexec.Request {
	args := make([]any, 1, 1+4*len(r.Items))
	args[0] = s.queue.channel
	for i := range r.Items {
		switch item := &r.Items[i]; item.Disposition.Action {
		case taskloop.Complete:
			args = appendFinish(args, item.ID, item.Receipt)
		case taskloop.Retry:
			args = appendGiveBack(args, item.ID, item.Receipt, item.Disposition.Delay, attemptCounts)
		case taskloop.Release:
			args = appendGiveBack(args, item.ID, item.Receipt, 0, attemptDoesNotCount)
		case taskloop.SetAside:
			args = appendBury(args, item.ID, item.Receipt, item.Disposition.Reason)
		}
	}
	return reportScripts[r.Operation].Request(s.queue.keys, args...)
}

var reportScripts = [...]*redisexec.Script{
	taskloop.Finish: scriptDequeue, taskloop.GiveBack: scriptGiveBack, taskloop.Bury: scriptBury,
}

func decodeReport(r redisexec.Result, n int) taskloop.ReportResult {
	result := taskloop.ReportResult{Outcome: r.Outcome, Err: r.Err}
	if r.Outcome == redisexec.Done {
		result.Answers, result.Err = decodeAnswers(r.Value, n)
	}
	return result
}

func decodeClaim(r redisexec.Result) taskloop.ClaimResult {
	result := taskloop.ClaimResult{Outcome: r.Outcome, Err: r.Err}
	if r.Outcome != redisexec.Done {
		return result
	}
	seen, tasks, err := decodeClaimedTasks(r.Value)
	if err != nil {
		result.Err = fmt.Errorf("claim: %w", err)
		return result
	}
	result.Tasks, result.More, result.Receipt = tasks, seen > 0, receiptIn(r.Value)
	return result
}

// Extend sends extensions in one pipeline.
func (s *source) Extend(ctx context.Context, items []taskloop.Item) []taskloop.ExtendResult {
	requests := make([]redisexec.Request, len(items))
	for i, item := range items {
		requests[i] = s.queue.heartbeatRequest(item.ID, item.Receipt, s.lease)
	}
	results := make([]taskloop.ExtendResult, len(items))
	for i, r := range s.queue.executor.Pipeline(ctx, requests) {
		results[i] = taskloop.ExtendResult{Outcome: r.Outcome, Err: r.Err}
		if r.Outcome == redisexec.Done {
			results[i].Answer, results[i].Err = decodeAnswer(r.Value)
		}
	}
	return results
}

// Wait waits until a task may be due.
func (s *source) Wait(ctx context.Context) error { return s.queue.Wait(ctx) }

// Start runs a job in a goroutine of the executor's.
func (s *source) Start(job redisexec.Job) { s.queue.executor.Start(job) }

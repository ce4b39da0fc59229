package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"
)

// report has the results of a run.
type report struct {
	Machine   machine   `json:"machine"`
	Scenarios []outcome `json:"scenarios"`
}

// machine describes where the figures were measured.
type machine struct {
	Server string    `json:"server"`
	CPU    string    `json:"cpu"`
	Go     string    `json:"go"`
	OS     string    `json:"os"`
	Arch   string    `json:"arch"`
	CPUs   int       `json:"cpus"`
	Pool   int       `json:"pool"`
	Rounds int       `json:"rounds"`
	Time   time.Time `json:"time"`
}

func describe(ctx context.Context, addr string, rounds int) (machine, error) {
	version, err := describeServer(ctx, addr)
	return machine{
		Server: version, CPU: processor(), Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH, CPUs: runtime.NumCPU(),
		Pool: poolSize, Rounds: rounds, Time: time.Now().UTC().Truncate(time.Second),
	}, err
}

func (m machine) print(out io.Writer) {
	_, _ = fmt.Fprintf(out, "%s, %s, %s/%s, %d CPUs (%s), pools of %d connections, rounds: %d\n",
		m.Server, m.Go, m.OS, m.Arch, m.CPUs, m.CPU, m.Pool, m.Rounds)
}

// again prints and draws what an earlier run has written as JSON: of the scenarios that were
// chosen.
func again(_ context.Context, c config, out, _ io.Writer) error {
	if err := c.checkOutputs(); err != nil {
		return err
	}
	b, err := os.ReadFile(c.from)
	if err != nil {
		return fmt.Errorf("-from: %w", err)
	}
	var earlier report
	if err := json.Unmarshal(b, &earlier); err != nil {
		return fmt.Errorf("-from: %w", err)
	}
	found := report{Machine: earlier.Machine}
	found.Machine.print(out)
	for _, s := range c.scenarios {
		for _, o := range earlier.Scenarios {
			if o.Name != s.name {
				continue
			}
			o.scenario = s
			o.Contenders = slices.DeleteFunc(o.Contenders, func(st standing) bool {
				return !slices.ContainsFunc(s.entries, func(e entrant) bool { return e.name == st.Name })
			})
			o.print(out)
			found.Scenarios = append(found.Scenarios, o)
		}
	}
	return found.write(c)
}

// processor returns the make of this machine's processors, as Linux tells it.
func processor() string {
	b, _ := os.ReadFile("/proc/cpuinfo")
	_, after, _ := strings.Cut(string(b), "model name")
	line, _, _ := strings.Cut(after, "\n")
	_, name, _ := strings.Cut(line, ":")
	return strings.Join(strings.Fields(name), " ")
}

// outcome has the results of a scenario.
type outcome struct {
	scenario   scenario
	Name       string        `json:"name"`
	About      string        `json:"about"`
	Unit       string        `json:"unit"` // a "time" is in nanoseconds
	Better     string        `json:"better"`
	Retry      time.Duration `json:"retry_ns,omitempty"`
	Contenders []standing    `json:"contenders"`
}

// standing has the results of a contender in all rounds of a scenario.
type standing struct {
	Name     string             `json:"name"`
	Settings string             `json:"settings"`
	Values   []float64          `json:"values"` // of the rounds that gave one
	Median   float64            `json:"median,omitempty"`
	Min      float64            `json:"min,omitempty"`
	Max      float64            `json:"max,omitempty"`
	Ratio    float64            `json:"to_sluice,omitempty"` // of the medians
	Wait     *wait              `json:"wait,omitempty"`
	Extra    map[string]float64 `json:"extra,omitempty"` // by the title of the scenario's column
	Failures failures           `json:"failures"`
	Notes    []string           `json:"notes,omitempty"`
}

// wait summarizes the waits of all rounds.
type wait struct {
	P50 time.Duration `json:"p50_ns"`
	P99 time.Duration `json:"p99_ns"`
	Max time.Duration `json:"max_ns"`
}

func (s scenario) outcome(results [][]result) outcome {
	o := outcome{scenario: s, Name: s.name, About: s.about, Unit: s.measure.unit, Better: s.measure.better, Retry: s.retry}
	for i, rs := range results {
		o.Contenders = append(o.Contenders, s.standing(s.entries[i], rs))
	}
	if reference := o.reference(); reference > 0 {
		for i := range o.Contenders {
			o.Contenders[i].Ratio = o.Contenders[i].Median / reference
		}
	}
	return o
}

// reference returns Sluice's median; 0 if there is none.
func (o outcome) reference() float64 {
	for _, st := range o.Contenders {
		if strings.HasPrefix(st.Name, sluiceName) {
			return st.Median
		}
	}
	return 0
}

func (s scenario) standing(e entrant, rs []result) standing {
	st := standing{Name: e.name, Settings: e.settings, Values: valuesOf(rs), Wait: waitOf(rs), Extra: map[string]float64{}}
	if len(st.Values) > 0 {
		st.Median, st.Min, st.Max = median(st.Values), slices.Min(st.Values), slices.Max(st.Values)
	}
	for _, c := range s.columns {
		if values := extras(rs, c.title); len(values) > 0 {
			st.Extra[c.title] = c.fold(values)
		}
	}
	for _, r := range rs {
		st.Failures.merge(r.failures)
		if r.notes != "" && !slices.Contains(st.Notes, r.notes) {
			st.Notes = append(st.Notes, r.notes)
		}
	}
	return st
}

// valuesOf returns the values of the turns that gave one.
func valuesOf(rs []result) []float64 {
	values := []float64{}
	for _, r := range rs {
		if r.value > 0 {
			values = append(values, r.value)
		}
	}
	return values
}

func extras(rs []result, title string) (values []float64) {
	for _, r := range rs {
		if v, ok := r.extra[title]; ok {
			values = append(values, v)
		}
	}
	return values
}

// waitOf returns nil if there are no waits.
func waitOf(rs []result) *wait {
	sum := newWaits()
	for _, r := range rs {
		if r.waits != nil {
			sum.Merge(r.waits)
		}
	}
	if sum.TotalCount() == 0 {
		return nil
	}
	return &wait{
		P50: time.Duration(sum.ValueAtQuantile(50)),
		P99: time.Duration(sum.ValueAtQuantile(99)),
		Max: time.Duration(sum.Max()),
	}
}

// checkOutputs checks before the measurements that the results can be written.
func (c config) checkOutputs() error {
	if c.json != "" {
		f, err := os.OpenFile(c.json, os.O_WRONLY|os.O_CREATE, 0o666)
		if err != nil {
			return fmt.Errorf("-json: %w", err)
		}
		_ = f.Close()
	}
	if c.plot != "" {
		if err := os.MkdirAll(c.plot, 0o777); err != nil {
			return fmt.Errorf("-plot: %w", err)
		}
	}
	return nil
}

// write writes the files that the flags ask for.
func (r report) write(c config) (err error) {
	if c.json != "" {
		err = r.writeJSON(c.json)
	}
	if c.plot != "" {
		err = errors.Join(err, r.plot(c.plot))
	}
	return err
}

func (r report) writeJSON(file string) error {
	b, err := json.MarshalIndent(r, "", "  ")
	if err == nil {
		err = os.WriteFile(file, append(b, '\n'), 0o666)
	}
	if err != nil {
		return fmt.Errorf("-json: %w", err)
	}
	return nil
}

package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/cmd/sluice/exporter"
	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// repository is the root of the repository, from this folder.
const repository = "../.."

// fileOf returns the text of a file of the repository.
func fileOf(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(repository, path))
	require.NoError(t, err)
	return string(text)
}

// documentsOf returns the documents of a YAML file.
func documentsOf[T any](t *testing.T, path string) (all []T) {
	t.Helper()
	for decoder := yaml.NewDecoder(strings.NewReader(fileOf(t, path))); ; {
		var document T
		err := decoder.Decode(&document)
		if err == io.EOF { //nolint:errorlint // the decoder returns it as it is
			return all
		}
		require.NoError(t, err, path)
		all = append(all, document)
	}
}

// alert is a rule of deploy/prometheus/alerts.yml.
type alert struct {
	Alert, Expr         string
	Labels, Annotations map[string]string
}

func alerts(t *testing.T) (all []alert) {
	t.Helper()
	for _, document := range documentsOf[struct{ Groups []struct{ Rules []alert } }](t, "deploy/prometheus/alerts.yml") {
		for _, group := range document.Groups {
			all = append(all, group.Rules...)
		}
	}
	require.NotEmpty(t, all)
	return all
}

// program returns the path of a program of a Debian package. Without it a test is skipped by hand.
func program(t *testing.T, name, debian string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil && os.Getenv("CI") == "true" {
		t.Fatalf("no %s on this machine (Debian: %s)", name, debian)
	} else if err != nil {
		t.Skipf("no %s on this machine: install it to run this test (Debian: %s)", name, debian)
	}
	return path
}

// TestDeploy_AlertsFireAndAreSilent has Prometheus's own tool play the cases of alerts_test.yml.
func TestDeploy_AlertsFireAndAreSilent(t *testing.T) {
	t.Parallel()
	promtool := program(t, "promtool", "prometheus")
	for _, arguments := range [][]string{{"check", "rules", "alerts.yml"}, {"test", "rules", "alerts_test.yml"}} {
		c := exec.CommandContext(t.Context(), promtool, arguments...)
		c.Dir = filepath.Join(repository, "deploy/prometheus")
		out, err := c.CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	cases := fileOf(t, "deploy/prometheus/alerts_test.yml")
	for _, a := range alerts(t) {
		require.Contains(t, cases, `{labels: '{alertname="`+a.Alert+`"`, "no case has %s fire", a.Alert)
	}
}

// TestDeploy_AlertsLeadToRunbooks: each alert says how much it matters and names its queue, and has
// a section in docs/runbooks.md, with the same parts as the others. No section is left over.
func TestDeploy_AlertsLeadToRunbooks(t *testing.T) {
	t.Parallel()
	sections := map[string]string{}
	for _, section := range strings.Split(fileOf(t, "docs/runbooks.md"), "\n## ")[1:] {
		heading, text, _ := strings.Cut(section, "\n")
		sections[strings.ToLower(heading)] = text
	}
	for _, a := range alerts(t) {
		require.Contains(t, []string{"critical", "warning"}, a.Labels["severity"], a.Alert)
		text := a.Annotations["summary"] + a.Annotations["description"]
		if strings.Contains(a.Expr, "messaging_destination_name") {
			require.Contains(t, a.Annotations["summary"], "{{ $labels.messaging_destination_name }}", a.Alert)
			require.True(t, strings.Contains(text, "{{ $value") || strings.HasSuffix(strings.TrimSpace(a.Expr), "== 1"), "%s says no figure", a.Alert)
		}
		anchor, found := strings.CutPrefix(a.Annotations["runbook_url"], "https://github.com/sluice-go/sluice/blob/main/docs/runbooks.md#")
		require.True(t, found, a.Alert)
		require.Equal(t, strings.ToLower(a.Alert), anchor)
		section, found := sections[anchor]
		require.True(t, found, "docs/runbooks.md has no section %s", a.Alert)
		for _, part := range []string{"**Look.**", "**Usual causes.**", "**Do.**", "**No problem**"} {
			require.Contains(t, section, part, a.Alert)
		}
		delete(sections, anchor)
	}
	require.Empty(t, sections, "no alert leads there")
}

// TestDeploy_AlertsAskForWhatIsExported: each metric of the rules is one that the exporter serves, or
// that a service's own hooks count.
func TestDeploy_AlertsAskForWhatIsExported(t *testing.T) {
	t.Parallel()
	metric := regexp.MustCompile(`\bsluice_[a-z_]+`)
	rdb := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr()})
	t.Cleanup(func() { _ = rdb.Close() })
	q, err := sluice.NewQueue(rdb, "orders")
	require.NoError(t, err)
	require.NoError(t, q.SetLimits(t.Context(), sluice.Limits{Running: 1, Rate: 1, Per: time.Second}))
	served := httptest.NewRecorder()
	exporter.New(rdb, exporter.Options{}).ServeHTTP(served, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
	known := metric.FindAllString(served.Body.String(), -1)
	require.Contains(t, fileOf(t, "sluiceotel/instruments.go"), `Int64Counter("sluice.task.stuck"`)
	known = append(known, "sluice_task_stuck_total")
	for _, a := range alerts(t) {
		names := metric.FindAllString(a.Expr, -1)
		require.NotEmpty(t, names, a.Alert)
		for _, name := range names {
			require.Contains(t, known, name, a.Alert)
		}
	}
}

// commandsOf returns the calls of the tool in a page: in blocks of a shell, and inline.
func commandsOf(page string) (all []string) {
	for _, block := range regexp.MustCompile("(?ms)^```sh\n(.*?)^```").FindAllStringSubmatch(page, -1) {
		for line := range strings.Lines(block[1]) {
			line, _, _ = strings.Cut(line, " #")
			if line = strings.TrimSpace(line); strings.HasPrefix(line, "sluice ") {
				all = append(all, line)
			}
		}
	}
	for _, inline := range regexp.MustCompile("`(sluice [^`]+)`").FindAllStringSubmatch(page, -1) {
		all = append(all, inline[1])
	}
	return all
}

// TestDeploy_RunbooksCommandsExist: an operator can type what the runbooks say.
func TestDeploy_RunbooksCommandsExist(t *testing.T) {
	t.Parallel()
	commands := commandsOf(fileOf(t, "docs/runbooks.md"))
	require.Greater(t, len(commands), 30)
	for _, command := range commands {
		require.NoError(t, understands(command), command)
	}
	for _, wrong := range []string{"sluice quues", "sluice queues --wider", "sluice get orders", "sluice pause orders --for soon"} {
		require.Error(t, understands(wrong), wrong)
	}
}

// understands reports whether the tool has a command, with these arguments and flags. One that is
// named alone needs no arguments.
func understands(command string) error {
	var words []string
	for _, word := range regexp.MustCompile(`"[^"]*"|\S+`).FindAllString(command, -1) {
		words = append(words, strings.Trim(word, `"`))
	}
	root := (&app{out: &output{Writer: io.Discard}, errOut: io.Discard}).command(nil)
	c, rest, err := root.Find(words[1:])
	if err == nil && c == root {
		err = cobra.NoArgs(root, words[1:])
	}
	if err != nil || len(words) == 2 {
		return err
	}
	c.InitDefaultHelpFlag()
	if err := c.ParseFlags(rest); err != nil {
		return err
	}
	if slices.Contains(rest, "--help") {
		return nil
	}
	return c.ValidateArgs(c.Flags().Args())
}

// manifest is what the tests read of a manifest for Kubernetes.
type manifest struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string
	Metadata   struct{ Name string }
	Spec       struct {
		Selector yaml.Node
		Template struct {
			Metadata struct{ Labels, Annotations map[string]string }
			Spec     struct {
				SecurityContext struct {
					RunAsNonRoot bool `yaml:"runAsNonRoot"`
				} `yaml:"securityContext"`
				Containers []container
			}
		}
		Ports []struct {
			Port       int
			TargetPort string `yaml:"targetPort"`
		}
	}
}

type container struct {
	Args           []string
	Env            []struct{ Name, Value string }
	Ports          []struct{ Name string }
	ReadinessProbe struct {
		HTTPGet struct{ Path, Port string } `yaml:"httpGet"`
	} `yaml:"readinessProbe"`
	LivenessProbe struct {
		TCPSocket struct{ Port string } `yaml:"tcpSocket"`
	} `yaml:"livenessProbe"`
	SecurityContext struct {
		AllowPrivilegeEscalation *bool `yaml:"allowPrivilegeEscalation"`
		ReadOnlyRootFilesystem   bool  `yaml:"readOnlyRootFilesystem"`
	} `yaml:"securityContext"`
}

// checkSettings checks that each name is a setting of the tool by the environment.
func checkSettings(t *testing.T, names ...string) {
	t.Helper()
	root := (&app{}).command(nil)
	for _, name := range names {
		flag := strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(name, "SLUICE_"), "_", "-"))
		require.NotNil(t, root.PersistentFlags().Lookup(flag), "there is no setting %s", name)
	}
}

// TestDeploy_KubernetesRunsTheExporter: the parts of the manifest fit each other and the tool.
func TestDeploy_KubernetesRunsTheExporter(t *testing.T) {
	t.Parallel()
	documents := documentsOf[manifest](t, "deploy/kubernetes/sluice.yaml")
	require.Len(t, documents, 2)
	deployment, service := documents[0], documents[1]
	require.Equal(t, "apps/v1 Deployment", deployment.APIVersion+" "+deployment.Kind)
	require.Equal(t, "v1 Service", service.APIVersion+" "+service.Kind)
	pod := deployment.Spec.Template
	var wanted map[string]string
	require.NoError(t, service.Spec.Selector.Decode(&wanted))
	require.Equal(t, wanted, pod.Metadata.Labels)
	require.True(t, pod.Spec.SecurityContext.RunAsNonRoot)
	require.Len(t, pod.Spec.Containers, 1)
	c := pod.Spec.Containers[0]
	require.NoError(t, understands("sluice "+strings.Join(c.Args, " ")))
	for _, variable := range c.Env {
		checkSettings(t, variable.Name)
		require.NotEqual(t, "SLUICE_PASSWORD", variable.Name)
	}
	require.Equal(t, "/healthz", c.ReadinessProbe.HTTPGet.Path)
	require.Equal(t, []string{"http", "http", "http"}, []string{c.Ports[0].Name, c.ReadinessProbe.HTTPGet.Port, c.LivenessProbe.TCPSocket.Port})
	require.Equal(t, "http", service.Spec.Ports[0].TargetPort)
	require.False(t, *c.SecurityContext.AllowPrivilegeEscalation)
	require.True(t, c.SecurityContext.ReadOnlyRootFilesystem)
	for _, trigger := range keda(t).Spec.Triggers {
		require.Regexp(t, `^http://`+service.Metadata.Name+`\.[a-z.]+:9478/api/queues/`, trigger.Metadata["url"])
	}
}

// TestDeploy_SystemdRunsTheExporter: the unit calls the tool as it can be called, as no user of the
// machine, and the password is in no variable. systemd's own check runs where there is a systemd.
func TestDeploy_SystemdRunsTheExporter(t *testing.T) {
	t.Parallel()
	unit := fileOf(t, "deploy/systemd/sluice.service")
	settings := map[string][]string{}
	for _, line := range regexp.MustCompile(`(?m)^(\w+)=(.*)$`).FindAllStringSubmatch(unit, -1) {
		settings[line[1]] = append(settings[line[1]], line[2])
	}
	require.Equal(t, []string{"yes"}, settings["DynamicUser"])
	require.Equal(t, []string{"strict"}, settings["ProtectSystem"])
	require.Equal(t, []string{"yes"}, settings["NoNewPrivileges"])
	start, found := strings.CutPrefix(settings["ExecStart"][0], "/usr/local/bin/")
	require.True(t, found)
	require.NoError(t, understands(start))
	name, value, _ := strings.Cut(settings["Environment"][0], "=")
	checkSettings(t, name)
	credential, _, _ := strings.Cut(settings["LoadCredential"][0], ":")
	require.Equal(t, "%d/"+credential, value)
	require.NotContains(t, unit, "SLUICE_PASSWORD=")

	if systemd, err := exec.LookPath("systemd-analyze"); err == nil {
		path := filepath.Join(t.TempDir(), "sluice.service")
		require.NoError(t, os.WriteFile(path, []byte(strings.ReplaceAll(unit, "/usr/local/bin/sluice ", "/bin/true ")), 0o600))
		out, err := exec.CommandContext(t.Context(), systemd, "verify", path).CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.NotContains(t, string(out), "sluice.service:", "a line that systemd does not know")
	}
}

package web

import (
	"net/url"
	"strings"

	"github.com/sluice-go/sluice"
)

// segment returns a name as one segment of a URL's path. Any bytes come back from it, see
// fromSegment. Browsers resolve "." and ".." even if they are percent-encoded, and http.ServeMux
// takes "%2F" alone for the end of a path: those get a "~" in front, and names that begin with one
// get another.
func segment(name string) string {
	if name == "." || name == ".." || name == "/" || strings.HasPrefix(name, "~") {
		name = "~" + name
	}
	return url.PathEscape(name)
}

// fromSegment returns the name of a segment that has been unescaped.
func fromSegment(s string) string { return strings.TrimPrefix(s, "~") }

func (p *page) queueURL(queue string) string { return p.options.Prefix + "/queues/" + segment(queue) }

func (p *page) tasksURL(queue string) string { return p.queueURL(queue) + "/tasks" }

func (p *page) taskURL(queue, id string) string { return p.tasksURL(queue) + "/" + segment(id) }

// groupURL is that of the list of the tasks that wait in a group.
func (p *page) groupURL(queue, group string) string {
	return p.queueURL(queue) + listing{State: sluice.StateWaiting, filter: filter{Group: group}, N: perPage}.Query()
}

func (p *page) lockURL(lock string) string { return p.options.Prefix + "/locks/" + segment(lock) }

// A form's value goes through a browser, which takes it for text: it would change line ends and
// bytes that are no UTF-8. So IDs and groups in a form are percent-encoded.

func formValue(id string) string { return url.QueryEscape(id) }

func fromFormValue(s string) (string, error) { return url.QueryUnescape(s) }

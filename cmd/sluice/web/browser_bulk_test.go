package web

import (
	"fmt"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/redistest"
)

// TestBrowser_FiltersAndChangesMany, behind a proxy and below a prefix: from the reasons to the
// letters, by the form of filters, and with the bar of actions in sight all the time.
func TestBrowser_FiltersAndChangesMany(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	q := newQueue(t, rdb, "orders")
	for reason, n := range map[string]int{"timeout": 60, "declined: card": 5} {
		fill(t, q, n, 0, reason[:4])
		buryAll(t, q, n, reason)
	}
	s := newSite(t, rdb, Options{Write: true, Prefix: "/ops/sluice"})
	behind, err := url.Parse(s.url)
	require.NoError(t, err)
	behind.Path = ""
	proxy := httptest.NewServer(httputil.NewSingleHostReverseProxy(behind))
	defer proxy.Close()
	for _, width := range []int{1100, 390} {
		b := newBrowser(t, width, 800)
		b.open(proxy.URL + "/ops/sluice/?sort=name")
		b.do(chromedp.Click(`a[href$="sort=worst"]`))
		b.eventually(`location.search === '?sort=worst' && document.readyState === 'complete' && !document.querySelector('th[aria-sort]')`)
		b.open(proxy.URL + "/ops/sluice/queues/orders?state=dead&n=250")
		const inSight = `(() => { const r = document.querySelector('.deeds').getBoundingClientRect(); return r.bottom <= innerHeight + 1 && r.top >= 0; })()`
		for _, place := range []string{"#selection tbody tr:nth-child(10)", "#selection tbody tr:nth-child(40)", ".paging"} {
			eval[bool](b, fmt.Sprintf(`document.querySelector(%q).scrollIntoView({block: 'center'}) === undefined`, place))
			require.True(t, eval[bool](b, inSight), "%s at %d", place, width)
		}
		b.do(chromedp.Click(`.reasons li:nth-child(2) a`))
		b.eventually(`document.readyState === 'complete' && document.querySelectorAll('#selection tbody tr').length === 5 && document.querySelector('.reasons [aria-current]').textContent.includes('declined: card')`)
		b.do(chromedp.Click(`.filter summary`), chromedp.WaitVisible(`#f-contains`), chromedp.SendKeys(`#f-contains`, "0003"+kb.Enter))
		b.eventually(`document.readyState === 'complete' && document.querySelectorAll('#selection tbody tr').length === 1 && document.querySelector('.only')?.textContent === 'Only: Reason contains declined: card · ID contains 0003'`)
		b.do(chromedp.Click(`.filter .button`))
		b.eventually(`document.readyState === 'complete' && location.search === '?state=dead' && !document.querySelector('.only')`)
		b.do(chromedp.SendKeys(`#reason`, "DECLINED"+kb.Enter))
		b.eventually(`document.readyState === 'complete' && document.querySelectorAll('#selection tbody tr').length === 5`)
		b.do(chromedp.Click(`.deeds form button[value=revive]`))
		b.eventually(`document.querySelector('h1').textContent === 'Revive 5 dead letters?' && document.readyState === 'complete'`)
		b.do(chromedp.Click(`button[value=revive]`))
		b.eventually(`document.querySelector('.notice')?.textContent.includes('5 dead letters revived') && document.readyState === 'complete'`)
		buryAll(t, q, 5, "declined: card")
		s.later()
		b.requireQuiet(proxy.URL)
	}
}

// SPDX-License-Identifier: BSD-2-Clause

package locks

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestContract checks that the packages of this module keep what their comments say about locks.
func TestContract(t *testing.T) {
	wrong, locks, err := Check("../../..", "./rdma/...", "./runtime")
	require.NoError(t, err)
	for _, l := range []string{
		"Life.mu", "EventChannel.mu", "ID.mu", "ID.record", // objects and connections
		"slots.mu", "slots.missing", "CompletionQueue.mu", // of queues
		"Fabric.mu", "cq.mu", "qp.post", "host.mu", "FD.mu", // of the software device
	} {
		assert.Contains(t, locks, l, "comments say what it guards, or which functions need it")
	}
	for _, w := range wrong {
		t.Error(w)
	}
}

const right = `package m

import "sync"

type T struct {
	before int
	mu     sync.Mutex // guards what follows, up to last
	a      int
	idle   sync.Cond
	last   int
	free   int
	other  sync.Mutex
	alone  int // guarded by other, as nothing else is
}

type outer struct {
	T
	flag bool // guarded by mu
}

func (o *outer) Fine() { o.mu.Lock(); o.flag = true; o.mu.Unlock() }

type I interface {
	// Call calls. The caller holds T.mu.
	Call()
	quiet()
}

func (t *T) Call() { t.a = 1 }
func (t *T) quiet() {}
func Through(t *T, i I) { t.mu.Lock(); i.Call() }

// Takes takes. It takes T.mu.
func (t *T) Takes() { t.mu.Lock(); t.a = 1 }
func Twice(t *T) { t.Takes(); t.Takes() }

func (t *T) Locked() int { t.mu.Lock(); defer t.mu.Unlock(); return t.a + t.inner() }
func (t *T) inner() int  { return t.last }
func (t *T) Unguarded()  { t.before, t.free = 1, 2; t.idle.Signal() }
func New() *T            { t := &T{}; t.a = 1; return t }

// Says has a contract. The caller holds T.mu.
func Says(t *T) int { return t.a }

// lock takes T.mu for its caller.
func lock(t *T) { t.mu.Lock() }
func Helped(t *T) { lock(t); t.a = 1; t.mu.Unlock() }

func Quiet(t *T) {
	t.a = 1 // It needs no lock: nobody else has it yet.
}

// callback is called by the clock. The caller holds mu.
func (t *T) callback() { t.a++ }
func (t *T) Later() func() { return t.callback }
`

// TestWhatIsFound checks that each mistake is found, and nothing else.
func TestWhatIsFound(t *testing.T) {
	cases := map[string]struct{ text, want string }{
		"right": {"", ""},
		"exported": {"func (t *T) Bad() { t.a = 1 }",
			"NAME.go:2: Bad neither takes T.mu nor says that its caller holds it: NAME.go:2 uses what it guards"},
		"last": {"func (t *T) Bad() { t.last = 1 }",
			"NAME.go:2: Bad neither takes T.mu nor says that its caller holds it: NAME.go:2 uses what it guards"},
		"others": {"func (t *T) Bad() { one(t) }\nfunc one(t *T) { t.inner() }",
			"NAME.go:2: Bad neither takes T.mu nor says that its caller holds it: NAME.go:2 calls one"},
		"says": {"func Bad(t *T) { Says(t) }",
			"NAME.go:2: Bad neither takes T.mu nor says that its caller holds it: NAME.go:2 calls Says"},
		"late": {"func (t *T) Bad() { t.a = 1; t.mu.Lock() }",
			"NAME.go:2: Bad neither takes T.mu nor says that its caller holds it: NAME.go:2 uses what it guards"},
		"lock": {"import \"sync\"\nvar mu sync.Mutex\nfunc (t *T) Bad() { mu.Lock(); t.a = 1 }",
			"NAME.go:4: Bad neither takes T.mu nor says that its caller holds it: NAME.go:4 uses what it guards"},
		"value": {"func Bad(t *T) func() int { return t.inner }",
			"NAME.go:2: inner is used as a value, and does not say that its caller holds T.mu: " +
				"r.go:38 uses what it guards"},
		"goroutine": {"func Bad(t *T) { t.mu.Lock(); go t.inner() }",
			"NAME.go:2: Bad starts inner, which needs T.mu: r.go:38 uses what it guards"},
		"inside": {"func (t *T) fine() { t.a = 1 }", ""},
		"field": {"func (t *T) Bad() { t.mu.Lock(); t.alone = 1 }",
			"NAME.go:2: Bad neither takes T.other nor says that its caller holds it: NAME.go:2 uses what it guards"},
		"embedded": {"func (o *outer) Bad() { o.flag = true }",
			"NAME.go:2: Bad neither takes T.mu nor says that its caller holds it: NAME.go:2 uses what it guards"},
		"through": {"func Bad(i I) { i.Call() }",
			"NAME.go:2: Bad neither takes T.mu nor says that its caller holds it: NAME.go:2 calls Call"},
		"interface": {"type J interface { inner() int }",
			"NAME.go:2: inner of an interface does not say that its caller holds T.mu: " +
				"r.go:38 r.go:38 uses what it guards"},
		"takes": {"// bad is bad. It takes T.mu.\nfunc (t *T) bad() {}",
			"NAME.go:3: bad says that it takes T.mu, and does not"},
		"twice": {"// bad is bad. The caller holds T.mu.\nfunc bad(t *T) { t.Takes() }",
			"NAME.go:3: bad calls Takes, which takes T.mu, and its caller holds it: it says so"},
		"typo": {"// bad is bad. The caller holds T.mux.\nfunc bad(t *T) {}",
			"NAME.go:3: there is no lock T.mux"},
		"end": {"import \"sync\"\ntype U struct { mu sync.Mutex // guards what follows, up to there\na int }",
			"NAME.go:3: U.mu guards what follows up to there, which does not follow"},
	}
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "go.mod"), []byte("module m\n\ngo 1.26\n"), 0o644))
	var want []string
	for name, c := range cases {
		own := filepath.Join(dir, name)
		require.NoError(t, os.Mkdir(own, 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(own, "r.go"), []byte(right), 0o644))
		require.NoError(t, os.WriteFile(filepath.Join(own, name+".go"), []byte("package m\n"+c.text), 0o644))
		if c.want != "" {
			want = append(want, strings.ReplaceAll(c.want, "NAME", name))
		}
	}
	wrong, locks, err := Check(dir, "./...")
	require.NoError(t, err)
	assert.Len(t, locks, 2*len(cases)+1)
	assert.ElementsMatch(t, want, wrong)
}

// SPDX-License-Identifier: BSD-2-Clause

package suites

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Runner runs cases sequentially.
type Runner struct {
	Libraries string // directory of the drop-in libraries; "" selects the system's libraries, with Kernel
	Kernel    *Kernel
	Cache     string // directory for suites built from source
	Log       func(format string, args ...any)
	Begins    func(name string) // optional: called before each case and each module of pyverbs
	Ended     func(Result)      // optional: called with each result

	// optional: Command returns a command with the environment of a Kernel's programs
	Command  func(program string, args ...string) *exec.Cmd
	Python   []string // environment and interpreter for pyverbs; default: the system's
	Together bool     // run all modules of pyverbs in one process, where loading them all takes long

	network *network // optional: network of the programs
}

// Kernel is a kernel device that all programs use, instead of a software device for each.
type Kernel struct {
	Device, Address string
	GID             string        // GID index of Address
	Slower          time.Duration // factor for timeouts
}

// addresses counts the addresses of devices, so that a run does not reuse one.
var addresses atomic.Uint32

// address returns a loopback address for a device. It contains the process ID, so that concurrent runs do not collide.
func address() string {
	n := addresses.Add(1)
	return fmt.Sprintf("127.%d.%d.%d", 64+os.Getpid()%128, n/250%250, 1+n%250)
}

// addresses returns the addresses of a case.
func (r *Runner) addresses() (server, client string) {
	switch {
	case r.Kernel != nil:
		return r.Kernel.Address, r.Kernel.Address
	case r.network != nil:
		return networkAddresses[0], networkAddresses[1]
	}
	return address(), address()
}

// limit returns the timeout of a case or a Python test.
func (r *Runner) limit(s *Suite) time.Duration {
	if r.Kernel != nil {
		return s.Limit * r.Kernel.Slower
	}
	return s.Limit
}

// fill returns a replacer for placeholders, with additional pairs of names and values.
func (r *Runner) fill(pairs ...string) *strings.Replacer {
	device, gid := "soft0", "0"
	if r.Kernel != nil {
		device, gid = r.Kernel.Device, r.Kernel.GID
	}
	return strings.NewReplacer(append(pairs, "{cache}", r.Cache, "{device}", device, "{gid}", gid)...)
}

func (r *Runner) begins(name string) {
	if r.Begins != nil {
		r.Begins(name)
	}
}

func (r *Runner) ended(result Result) {
	if r.Ended != nil {
		r.Ended(result)
	}
}

// freePort returns an unused port.
func freePort() (string, error) {
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	return port, err
}

// Run runs a case of a suite.
func (r *Runner) Run(ctx context.Context, s *Suite, c Case) Result {
	ctx, cancel := context.WithTimeout(ctx, r.limit(s))
	defer cancel()
	server, client := r.addresses()
	port, err := freePort()
	if err != nil {
		return Result{c.Name, Fail, err.Error(), ""}
	}
	temp, err := os.MkdirTemp("", "goverbs-suite-")
	if err != nil {
		return Result{c.Name, Fail, err.Error(), ""}
	}
	defer os.RemoveAll(temp)
	fill := r.fill("{port}", port, "{server}", server, "{client}", client, "{temp}", filepath.Join(temp, "file"))
	var serving *process
	if len(c.Server) > 0 {
		if serving, err = r.start(server, fill, c.Server); err != nil {
			return Result{c.Name, Fail, err.Error(), ""}
		}
		defer serving.kill()
		serving.waits(ctx)
	}
	asking, err := r.start(client, fill, c.Client)
	if err != nil {
		return Result{c.Name, Fail, err.Error(), ""}
	}
	defer asking.kill()
	asked, text := asking.end(ctx), asking.text
	switch {
	case asked == nil && !strings.Contains(asking.text(), fill.Replace(c.Prints)):
		asked = fmt.Errorf("%q is not in the output", c.Prints)
	case asked == nil && serving != nil && !c.Stays:
		if err := serving.end(ctx); err != nil {
			asked, text = fmt.Errorf("server: %w", err), serving.text
		}
	}
	if asked == nil {
		return Result{c.Name, Pass, "", ""}
	}
	var exit *exec.ExitError
	if errors.As(asked, &exit) && slices.Contains(s.Skips, exit.ExitCode()) {
		return Result{c.Name, Skip, last(asking.text()), ""}
	}
	result := Result{c.Name, Fail, fmt.Sprintf("%v: %s", asked, last(text())), "client: " + asking.text()}
	if serving != nil {
		result.output += "server: " + serving.text()
	}
	return result
}

// process is a process with its own process group.
type process struct {
	cmd    *exec.Cmd
	mu     sync.Mutex // guards the following fields
	output bytes.Buffer
	last   time.Time // time of its last output, or of its start

	ended chan struct{} // closed when err is set
	err   error
}

// start starts a command with its own device.
func (r *Runner) start(address string, fill *strings.Replacer, command []string) (*process, error) {
	var words, env []string
	for _, word := range command {
		word = fill.Replace(word)
		if len(words) == 0 && strings.Contains(word, "=") {
			env = append(env, word)
		} else {
			words = append(words, word)
		}
	}
	if r.network != nil {
		words = append(r.network.within(), words...)
	}
	p := &process{cmd: r.command(address, words[0], words[1:]...), ended: make(chan struct{}), last: time.Now()}
	p.cmd.Env = append(p.cmd.Env, env...)
	p.cmd.Stdout, p.cmd.Stderr = p, p
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.cmd.WaitDelay = time.Second
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.ended)
	}()
	return p, nil
}

// command returns a command whose environment selects the device.
func (r *Runner) command(address, program string, args ...string) *exec.Cmd {
	if r.Command != nil {
		return r.Command(program, args...)
	}
	cmd := exec.Command(program, args...)
	cmd.Env = r.environ(address)
	return cmd
}

// environ returns the environment that goverbs-run sets.
func (r *Runner) environ(address string) []string {
	if r.Kernel != nil {
		return os.Environ()
	}
	env := append(os.Environ(), "LD_LIBRARY_PATH="+r.Libraries, "UCX_UD_VERBS_ETH_DGID_CHECK=n",
		"GOVERBS_DEVICE=soft@"+address)
	files := filepath.Join(r.Libraries, "libgoverbs-files.so")
	if _, err := os.Stat(files); err == nil {
		env = append(env, "LD_PRELOAD="+files)
	}
	return env
}

// Write stores output of the process.
func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last = time.Now()
	return p.output.Write(b)
}

func (p *process) text() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.output.String()
}

var errNotInTime = errors.New("it did not end in time")

// end waits until the process has ended or ctx is done.
func (p *process) end(ctx context.Context) error {
	select {
	case <-p.ended:
		return p.err
	case <-ctx.Done():
		return errNotInTime
	}
}

// endOrSilence waits until the process has ended, has written nothing for limit, or ctx is done.
func (p *process) endOrSilence(ctx context.Context, limit time.Duration) error {
	for {
		p.mu.Lock()
		left := time.Until(p.last.Add(limit))
		p.mu.Unlock()
		if left <= 0 {
			return errNotInTime
		}
		select {
		case <-p.ended:
			return p.err
		case <-ctx.Done():
			return errNotInTime
		case <-time.After(left):
		}
	}
}

// kill kills the process group and waits for it to end. It does not wait forever, since a kernel may hang.
func (p *process) kill() {
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	select {
	case <-p.ended:
	case <-time.After(10 * time.Second):
	}
}

// waits returns when the process waits for clients: none of its threads was runnable in ten samples 20 ms apart. It
// returns after at most 10 s, since some servers never sleep.
func (p *process) waits(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for quiet := 0; quiet < 10; quiet++ {
		select {
		case <-p.ended:
			return
		case <-ctx.Done():
			return
		case <-tick.C:
			if !asleep(p.cmd.Process.Pid) {
				quiet = 0
			}
		}
	}
}

// asleep reports whether all threads of a process sleep.
func asleep(pid int) bool {
	tasks, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	for _, task := range tasks {
		stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/stat", pid, task.Name()))
		// the program name is in parentheses and may contain any character
		if i := bytes.LastIndexByte(stat, ')'); i < 0 || !bytes.HasPrefix(stat[i+1:], []byte(" S")) {
			return false
		}
	}
	return len(tasks) > 0
}

// last returns the last line of a text that is not empty.
func last(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	line := strings.TrimSpace(lines[len(lines)-1])
	for i := len(lines) - 1; i >= 0 && strings.Trim(line, "-= ") == ""; i-- {
		line = strings.TrimSpace(lines[i])
	}
	return strings.ReplaceAll(line, "|", "/")
}

// isRace reports whether a case failed because of a known race in the suite.
func (s *Suite) isRace(r Result) bool {
	return s.Again != "" && r.Ends == Fail && strings.Contains(r.output, s.Again)
}

// All runs the wanted cases of a suite.
func (r *Runner) All(ctx context.Context, s *Suite, wanted func(name string) bool) ([]Result, error) {
	if s.Network && r.Kernel == nil {
		n, err := newNetwork()
		if err != nil {
			return nil, err
		}
		defer n.close()
		within := *r
		within.network = n
		r = &within
	}
	if s.Python != "" {
		return r.RunPython(ctx, s, wanted)
	}
	var all []Result
	for _, c := range s.Cases {
		if !wanted(c.Name) {
			continue
		}
		r.begins(c.Name)
		start := time.Now()
		result := r.Run(ctx, s, c)
		for tries := 1; tries < 5 && s.isRace(result); tries++ {
			result = r.Run(ctx, s, c)
		}
		r.Log("%s: %s: %s; %.1f s%s", s.Name, c.Name, result, time.Since(start).Seconds(), result.detail())
		r.ended(result)
		all = append(all, result)
	}
	return all, nil
}

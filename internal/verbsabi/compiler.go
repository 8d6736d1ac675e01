// SPDX-License-Identifier: BSD-2-Clause

package verbsabi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// Compiler is a C compiler in the form of $CC: a program with optional arguments.
type Compiler []string

// String returns the command for a shell.
func (c Compiler) String() string { return strings.Join(c, " ") }

// triplet maps targets to GNU names, the prefixes of Debian's cross compilers.
var triplet = map[string]string{
	"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu", "loong64": "loongarch64-linux-gnu",
	"mips64": "mips64-linux-gnuabi64", "mips64le": "mips64el-linux-gnuabi64",
	"ppc64": "powerpc64-linux-gnu", "ppc64le": "powerpc64le-linux-gnu",
	"riscv64": "riscv64-linux-gnu", "s390x": "s390x-linux-gnu",
}

// ErrNoCompiler is the error of FindCompiler for a missing compiler.
var ErrNoCompiler = errors.New("no C compiler")

// FindCompiler finds a C compiler for a target: $CC, cc, gcc or clang for the machine's own target, and Debian's cross
// compiler for any target. The C witness verifies that it compiles for the target.
func FindCompiler(target string) (Compiler, error) {
	var names []string
	if target == runtime.GOARCH {
		if cc := strings.Fields(os.Getenv("CC")); len(cc) > 0 {
			if _, err := exec.LookPath(cc[0]); err != nil {
				return nil, fmt.Errorf("%w: CC is %q: %v; set CC to a C compiler, or unset it", ErrNoCompiler,
					os.Getenv("CC"), err)
			}
			return cc, nil
		}
		names = append(names, "cc", "gcc", "clang")
	}
	name, ok := triplet[target]
	if !ok {
		return nil, fmt.Errorf("%w known for target %s", ErrNoCompiler, target)
	}
	names = append(names, name+"-gcc")
	for _, n := range names {
		if _, err := exec.LookPath(n); err == nil {
			return Compiler{n}, nil
		}
	}
	return nil, fmt.Errorf("%w for %s (looked for %s); install gcc-%s, or name one with --cc",
		ErrNoCompiler, target, strings.Join(names, ", "), strings.ReplaceAll(name, "_", "-"))
}

// run compiles C text without generating code and returns the compiler's output. It returns no error if the compiler
// rejects the text.
func (c Compiler) run(ctx context.Context, includeDir, text string, more ...string) (string, error) {
	if len(c) == 0 {
		return "", fmt.Errorf("%w named", ErrNoCompiler)
	}
	args := []string{"-std=gnu11", "-fsyntax-only", "-Wall", "-Werror", "-Wno-deprecated-declarations",
		"-Wno-address-of-packed-member",
		"-fdiagnostics-color=never"}
	clang, err := c.isClang(ctx)
	if err != nil {
		return "", err
	}
	if clang {
		args = append(args, "-ferror-limit=0", "-fno-caret-diagnostics")
	} else {
		args = append(args, "-fmax-errors=0", "-fno-diagnostics-show-caret")
	}
	if includeDir != "" {
		for _, dir := range filepath.SplitList(includeDir) {
			args = append(args, "-isystem", dir)
		}
	}
	args = append(append(args, more...), "-x", "c", "-")
	return c.output(ctx, strings.NewReader(text), args...)
}

// Limits of a run, because the configured program may not be a compiler. A compiler needs seconds, and its longest
// output has a line for each of about ten thousand facts.
var (
	runTimeout = 5 * time.Minute
	maxText    = 32 << 20
)

// output runs the compiler with arguments in the C locale and returns its output. It returns no error if the compiler
// fails.
func (c Compiler) output(ctx context.Context, stdin io.Reader, args ...string) (string, error) {
	limited, cancel := context.WithTimeoutCause(ctx, runTimeout, fmt.Errorf("timed out after %v", runTimeout))
	defer cancel()
	out := &limitedBuffer{most: maxText, full: cancel}
	cmd := exec.CommandContext(limited, c[0], append(slices.Clone(c[1:]), args...)...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, out, out
	cmd.WaitDelay = time.Second // child processes may keep the pipe open
	err := cmd.Run()
	switch exit := (*exec.ExitError)(nil); {
	case ctx.Err() != nil:
		return "", fmt.Errorf("%s: %w", c, ctx.Err())
	case out.over:
		return "", fmt.Errorf("%s: output exceeds %d bytes; use another C compiler", c, maxText)
	case limited.Err() != nil:
		return "", fmt.Errorf("%s: %w; use another C compiler", c, context.Cause(limited))
	case err != nil && !errors.As(err, &exit):
		return "", fmt.Errorf("%s: %w; use another C compiler", c, err)
	}
	return out.text.String(), nil
}

// limitedBuffer stores up to a limit and calls full when the limit is reached.
type limitedBuffer struct {
	text bytes.Buffer
	most int
	over bool
	full func()
}

func (b *limitedBuffer) Write(p []byte) (int, error) {
	if b.text.Len()+len(p) > b.most {
		b.over = true
		b.full()
		return 0, io.ErrShortWrite
	}
	return b.text.Write(p)
}

// isClang reports whether the compiler uses clang's options where they differ from gcc's.
func (c Compiler) isClang(ctx context.Context) (bool, error) {
	out, err := c.output(ctx, nil, "--version")
	return strings.Contains(out, "clang"), err
}

// defaultInclude returns the compiler's include directories in search order.
func (c Compiler) defaultInclude(ctx context.Context) ([]string, error) {
	out, err := c.run(ctx, "", "", "-v")
	if err != nil {
		return nil, err
	}
	_, list, ok := strings.Cut(out, "#include <...> search starts here:\n")
	list, _, end := strings.Cut(list, "End of search list.")
	if !ok || !end {
		return nil, fmt.Errorf("%s -v does not print its include directories; name one with -I", c)
	}
	var dirs []string
	for line := range strings.Lines(list) {
		dirs = append(dirs, strings.TrimSpace(line))
	}
	return dirs, nil
}

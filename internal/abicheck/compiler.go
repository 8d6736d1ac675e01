// SPDX-License-Identifier: BSD-2-Clause

package abicheck

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

// Compiler is a C compiler as $CC names it: a program, perhaps with arguments.
type Compiler []string

// String is the command as a shell would read it.
func (c Compiler) String() string { return strings.Join(c, " ") }

// triplet is the GNU name of a target, which Debian puts before the names of its C compilers.
var triplet = map[string]string{
	"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu", "loong64": "loongarch64-linux-gnu",
	"mips64": "mips64-linux-gnuabi64", "mips64le": "mips64el-linux-gnuabi64",
	"ppc64": "powerpc64-linux-gnu", "ppc64le": "powerpc64le-linux-gnu",
	"riscv64": "riscv64-linux-gnu", "s390x": "s390x-linux-gnu",
}

// ErrNoCompiler is the error of FindCompiler where the machine has none.
var ErrNoCompiler = errors.New("no C compiler")

// FindCompiler finds a C compiler for a target: for the machine's own target $CC, cc, gcc or clang, for any target the
// cross compiler that Debian's packages install. Whether it really makes code for the target is part of the C witness.
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
		return nil, fmt.Errorf("%w is known for target %s", ErrNoCompiler, target)
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

// run compiles C text without making code and gives what the compiler says. That the compiler is content is no error,
// nor that it is not.
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

// What is named as a compiler may be no compiler: it has so much time, and may say so much, in each call. A compiler
// takes seconds; the longest that one has to say is a line for each of some ten thousand facts.
var (
	mostTime = 5 * time.Minute
	mostText = 32 << 20
)

// output runs the compiler with more arguments, in the language that its messages are read in, and gives what it says.
// That it fails is no error.
func (c Compiler) output(ctx context.Context, stdin io.Reader, args ...string) (string, error) {
	limited, cancel := context.WithTimeoutCause(ctx, mostTime, fmt.Errorf("it was not done after %v", mostTime))
	defer cancel()
	out := &limitedBuffer{most: mostText, full: cancel}
	cmd := exec.CommandContext(limited, c[0], append(slices.Clone(c[1:]), args...)...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, out, out
	cmd.WaitDelay = time.Second // for children of it, which may hold the pipe
	err := cmd.Run()
	switch exit := (*exec.ExitError)(nil); {
	case ctx.Err() != nil:
		return "", fmt.Errorf("%s: %w", c, ctx.Err())
	case out.over:
		return "", fmt.Errorf("%s: it says more than %d bytes; name another C compiler", c, mostText)
	case limited.Err() != nil:
		return "", fmt.Errorf("%s: %w; name another C compiler", c, context.Cause(limited))
	case err != nil && !errors.As(err, &exit):
		return "", fmt.Errorf("%s: %w; name another C compiler", c, err)
	}
	return out.text.String(), nil
}

// limitedBuffer keeps what is written up to a limit. It calls full when that is reached.
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

// isClang reports whether the compiler takes clang's options where they differ from gcc's.
func (c Compiler) isClang(ctx context.Context) (bool, error) {
	out, err := c.output(ctx, nil, "--version")
	return strings.Contains(out, "clang"), err
}

// defaultInclude is the directories in which the compiler looks for headers, in its order.
func (c Compiler) defaultInclude(ctx context.Context) ([]string, error) {
	out, err := c.run(ctx, "", "", "-v")
	if err != nil {
		return nil, err
	}
	_, list, ok := strings.Cut(out, "#include <...> search starts here:\n")
	list, _, end := strings.Cut(list, "End of search list.")
	if !ok || !end {
		return nil, fmt.Errorf("%s -v does not tell where it looks for headers; name the include directory with -I", c)
	}
	var dirs []string
	for line := range strings.Lines(list) {
		dirs = append(dirs, strings.TrimSpace(line))
	}
	return dirs, nil
}

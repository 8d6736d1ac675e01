// SPDX-License-Identifier: BSD-2-Clause

package verbsabi

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// GoWitness makes the Go compiler verify generated packages: it compiles packages of the module in moduleDir for Linux
// on goarch, without cgo. Their assertions fail to compile if a size, alignment or offset is wrong.
func GoWitness(ctx context.Context, moduleDir, goarch string, packages ...string) error {
	pkg := strings.Join(packages, " ")
	// -e: every error, not the first ten
	cmd := exec.CommandContext(ctx, "go", append([]string{"build", "-gcflags=-e"}, packages...)...)
	cmd.Dir = moduleDir
	cmd.Env = append(os.Environ(), "GOOS=linux", "GOARCH="+goarch, "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		return fmt.Errorf("go build %s for %s: %w", pkg, goarch, ctx.Err())
	}
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return fmt.Errorf("%s does not compile for linux/%s: %s", pkg, goarch, strings.TrimSpace(string(out)))
	}
	if err != nil {
		return fmt.Errorf("go build %s for %s: %w; install Go", pkg, goarch, err)
	}
	return nil
}

// SPDX-License-Identifier: BSD-2-Clause

package abi

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/goverbs/goverbs/gen/model"
	"github.com/goverbs/goverbs/gen/parse"
	"github.com/goverbs/goverbs/gen/rules"
)

// ErrNoHeaders is the error where a machine has no rdma-core headers.
var ErrNoHeaders = errors.New("no rdma-core headers")

// FindHeaders finds the include directory that a C compiler takes <infiniband/verbs.h> from.
func FindHeaders(ctx context.Context, cc Compiler) (string, error) {
	dirs, err := cc.defaultInclude(ctx)
	if err != nil {
		return "", err
	}
	for _, dir := range dirs {
		if _, err := os.Stat(filepath.Join(dir, "infiniband", "verbs.h")); err == nil {
			return dir, nil
		}
	}
	return "", fmt.Errorf("%w: infiniband/verbs.h is in none of the directories that %s looks in (%s); install "+
		"libibverbs-dev (rdma-core-devel), or name the include directory with -I",
		ErrNoHeaders, cc, strings.Join(dirs, ", "))
}

// hasHeaders reports as an error that a directory has no rdma-core headers.
func hasHeaders(includeDir string) error {
	if _, err := os.Stat(filepath.Join(includeDir, "infiniband", "verbs.h")); err != nil {
		return fmt.Errorf("%w in %s: %w; name the directory that holds infiniband/verbs.h with -I", ErrNoHeaders,
			includeDir, err)
	}
	return nil
}

// ReadHeaders reads installed headers for one target, those of some packages. No C compiler has a part in it.
func ReadHeaders(includeDir, target string, packages []rules.Package) (*model.Release, error) {
	return parse.Read(parse.Source{
		Release: "installed", Include: os.DirFS(includeDir), Name: includeDir, Headers: headersOf(packages),
		Targets: []string{target},
	})
}

var pcVersion = regexp.MustCompile(`(?m)^Version:\s*\d+\.\d+\.(\d+\.\d+)\s*$`)

// StatedRelease is the release that the pkg-config files beside an include directory name, or "" where there are none
// or they do not agree. The version of libibverbs ends in it: 1.14.44.0.
func StatedRelease(includeDir string) string {
	prefix := filepath.Dir(filepath.Clean(includeDir))
	stated := ""
	for _, pattern := range []string{"lib/pkgconfig", "lib64/pkgconfig", "lib/*/pkgconfig", "share/pkgconfig"} {
		files, _ := filepath.Glob(filepath.Join(prefix, pattern, "libibverbs.pc")) // the patterns are well formed
		for _, name := range files {
			text, err := os.ReadFile(name)
			if err != nil {
				continue
			}
			m := pcVersion.FindSubmatch(text)
			if m == nil || (stated != "" && stated != string(m[1])) {
				return ""
			}
			stated = string(m[1])
		}
	}
	return stated
}

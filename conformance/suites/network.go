// SPDX-License-Identifier: BSD-2-Clause

package suites

import (
	"bufio"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"strings"
)

// network is a network namespace for programs that ignore loopback interfaces. It has one interface with two addresses;
// traffic between them stays inside. It needs no privileges if users may create namespaces.
type network struct {
	holder *exec.Cmd
	stdin  io.Closer
}

// networkAddresses are the two addresses of every network.
var networkAddresses = [2]string{"192.0.2.1", "192.0.2.2"}

// newNetwork creates a network. It exists until it is closed or this process exits.
func newNetwork() (*network, error) {
	script := "ip link set lo up && ip link add one type veth peer name other && " +
		"ip addr add " + networkAddresses[0] + "/24 dev one && ip addr add " + networkAddresses[1] + "/24 dev one && " +
		"ip link set one up && ip link set other up && echo ready && exec cat"
	n := &network{holder: exec.Command("unshare", "--map-root-user", "--net", "sh", "-c", script)}
	stdin, err := n.holder.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := n.holder.StdoutPipe()
	if err != nil {
		return nil, err
	}
	var text strings.Builder
	n.stdin, n.holder.Stderr = stdin, &text
	if err := n.holder.Start(); err != nil {
		return nil, err
	}
	if line, err := bufio.NewReader(stdout).ReadString('\n'); err != nil {
		stdin.Close()
		_ = n.holder.Wait()
		return nil, fmt.Errorf("making a network namespace: %s%s%w", line, text.String(), err)
	}
	return n, nil
}

// within returns the command prefix that runs a command in the network.
func (n *network) within() []string {
	return []string{"nsenter", "--preserve-credentials", "--user", "--net", "--target",
		strconv.Itoa(n.holder.Process.Pid)}
}

func (n *network) close() {
	n.stdin.Close()
	_ = n.holder.Wait()
}

// SPDX-License-Identifier: BSD-2-Clause

package order

import (
	"math/rand/v2"
	"slices"
)

// graph has nodes 0 … n-1 and how often one uses another.
type graph struct {
	to   [][]int // which ones a node uses, in order
	uses [][]int // from, to → how often
}

func newGraph(n int) *graph {
	g := &graph{make([][]int, n), make([][]int, n)}
	for i := range n {
		g.uses[i] = make([]int, n)
	}
	return g
}

// add counts uses of b by a. The lists stay sorted, so that nothing depends on the order of adding.
func (g *graph) add(a, b, uses int) {
	if g.uses[a][b] == 0 {
		at, _ := slices.BinarySearch(g.to[a], b)
		g.to[a] = slices.Insert(g.to[a], at, b)
	}
	g.uses[a][b] += uses
}

// order gives all nodes with as few uses back as it finds.
func (g *graph) order() (all []int) {
	for _, circle := range g.circles() {
		all = append(all, g.best(circle)...)
	}
	return all
}

// circles gives the strongly connected components, users first (Tarjan).
func (g *graph) circles() (found [][]int) {
	n := len(g.to)
	index, low, on := make([]int, n), make([]int, n), make([]bool, n)
	next, stack := 0, []int(nil)
	var visit func(v int)
	visit = func(v int) {
		next++
		index[v], low[v] = next, next
		stack, on[v] = append(stack, v), true
		for _, w := range g.to[v] {
			if index[w] == 0 {
				visit(w)
				low[v] = min(low[v], low[w])
			} else if on[w] {
				low[v] = min(low[v], index[w])
			}
		}
		if low[v] < index[v] {
			return
		}
		at := slices.Index(stack, v)
		circle := slices.Clone(stack[at:])
		for _, w := range circle {
			on[w] = false
		}
		stack = stack[:at]
		slices.Sort(circle)
		found = append(found, circle)
	}
	for v := range n {
		if index[v] == 0 {
			visit(v)
		}
	}
	slices.Reverse(found) // Tarjan ends with what nobody uses
	return found
}

// kicks is how often a part of the best order is shuffled and mended again. Some 70 files need far fewer kicks until
// nothing gets better.
const kicks = 400

// best orders the nodes of a circle.
func (g *graph) best(circle []int) []int {
	if len(circle) < 2 {
		return circle
	}
	best := slices.Clone(circle)
	g.mend(best)
	least := g.back(best)
	try := func(order []int) {
		g.mend(order)
		if b := g.back(order); b <= least { // an equal order may lead further
			best, least = order, b
		}
	}
	// those that use more than they are used first
	surplus := make([]int, len(g.to))
	for _, a := range circle {
		for _, b := range circle {
			surplus[a] += g.uses[a][b] - g.uses[b][a]
		}
	}
	most := slices.Clone(circle)
	slices.SortStableFunc(most, func(a, b int) int { return surplus[b] - surplus[a] })
	try(most)
	draw := rand.New(rand.NewPCG(1, uint64(len(circle))))
	for range kicks {
		order := slices.Clone(best)
		for range 2 + draw.IntN(len(order)/2) {
			a, b := draw.IntN(len(order)), draw.IntN(len(order))
			move(order, a, b)
		}
		try(order)
	}
	return best
}

// back counts the uses of an order that run back.
func (g *graph) back(order []int) (n int) {
	for i, a := range order {
		for _, b := range order[:i] {
			n += g.uses[a][b]
		}
	}
	return n
}

// mend moves each node to the place with the fewest uses back, until no move helps.
func (g *graph) mend(order []int) {
	for again := true; again; {
		again = false
		for _, node := range slices.Clone(order) {
			at := slices.Index(order, node)
			best, gain := at, 0
			for step := -1; step <= 1; step += 2 {
				sum := 0
				for i := at + step; i >= 0 && i < len(order); i += step {
					// node passes order[i]: uses between the two turn round
					sum -= step * (g.uses[node][order[i]] - g.uses[order[i]][node])
					if sum > gain {
						best, gain = i, sum
					}
				}
			}
			if best != at {
				move(order, at, best)
				again = true
			}
		}
	}
}

// move takes the node at a out and puts it in at b.
func move(order []int, a, b int) {
	node := order[a]
	if a < b {
		copy(order[a:b], order[a+1:b+1])
	} else {
		copy(order[b+1:a+1], order[b:a])
	}
	order[b] = node
}

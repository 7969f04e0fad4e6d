// SPDX-License-Identifier: Apache-2.0

package main

// panel is a chart of a dashboard, or a number where it has one query and no time.
type panel struct {
	title, help string
	unit        string // of Grafana: short, s, bytes, percentunit, pps, Bps
	queries     []query
	number      bool
	red         float64 // with number: from which value it is red; 0 = never
}

// query is one line of a chart, or as many as its expression has.
type query struct {
	expr, legend string
}

type row struct {
	title  string
	panels []panel
}

type dashboard struct {
	name, title string
	rows        []row
}

type object = map[string]any

// source is the variable with the Prometheus that Grafana's user has chosen.
var source = object{"type": "prometheus", "uid": "${datasource}"}

// width is that of a dashboard, in Grafana's units; height is a chart's.
const width, height, numberHeight = 24, 8, 4

// grafana returns the dashboard in Grafana's JSON model, schema 36 (Grafana 9 and later).
func (d dashboard) grafana() object {
	panels := []object{}
	y, id := 0, 0
	for _, r := range d.rows {
		id++
		panels = append(panels, object{"id": id, "type": "row", "title": r.title, "collapsed": false, "panels": []object{},
			"gridPos": object{"h": 1, "w": width, "x": 0, "y": y}})
		y++
		x, tallest := 0, 0
		for _, p := range r.panels {
			w, h := width/2, height
			if p.number {
				w, h = width/6, numberHeight
			}
			if x+w > width {
				x, y = 0, y+tallest
				tallest = 0
			}
			id++
			panels = append(panels, p.grafana(id, object{"h": h, "w": w, "x": x, "y": y}))
			x, tallest = x+w, max(tallest, h)
		}
		y += tallest
	}
	return object{
		"uid": d.name, "title": d.title, "tags": []string{"weir"}, "schemaVersion": 36, "version": 1, "editable": true,
		"refresh": "30s", "time": object{"from": "now-1h", "to": "now"}, "timezone": "browser",
		"templating": object{"list": []object{
			{"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "hide": 0},
			{"name": "node", "label": "Node", "type": "query", "datasource": source, "query": "label_values(weir_build_info, node)",
				"refresh": 2, "sort": 1, "includeAll": true, "multi": true, "allValue": ".*", "current": object{"text": "All", "value": "$__all"}},
		}},
		"panels": panels,
	}
}

func (p panel) grafana(id int, at object) object {
	targets := []object{}
	for i, q := range p.queries {
		targets = append(targets, object{"datasource": source, "expr": q.expr, "legendFormat": q.legend, "refId": string(rune('A' + i)),
			"instant": p.number, "range": !p.number})
	}
	defaults := object{"unit": p.unit, "min": 0}
	out := object{"id": id, "title": p.title, "description": p.help, "datasource": source, "gridPos": at, "targets": targets,
		"fieldConfig": object{"defaults": defaults, "overrides": []object{}}}
	if !p.number {
		out["type"] = "timeseries"
		out["options"] = object{"legend": object{"displayMode": "list", "placement": "bottom"}, "tooltip": object{"mode": "multi", "sort": "desc"}}
		return out
	}
	steps := []object{{"color": "green", "value": nil}}
	if p.red != 0 {
		steps = append(steps, object{"color": "red", "value": p.red})
	}
	defaults["thresholds"] = object{"mode": "absolute", "steps": steps}
	out["type"] = "stat"
	out["options"] = object{"colorMode": "value", "reduceOptions": object{"calcs": []string{"lastNotNull"}}}
	return out
}

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	lua "github.com/yuin/gopher-lua"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	luajson "layeh.com/gopher-json"
)

// Argo CD gives a health check no more time.
const luaTimeout = time.Second

// Health is what Argo CD shows of an object.
type Health struct {
	Status  string `json:"status"`
	Message string `json:"message"`
}

var healths = []string{"Healthy", "Progressing", "Degraded", "Suspended", "Missing", "Unknown"}

// argoHealth runs a health check as Argo CD does. An object that is being deleted is Progressing without it.
// The script has only the libraries package, base and table; Argo CD adds os.time and os.date.
func argoHealth(object *unstructured.Unstructured, script string) (Health, error) {
	if object.GetDeletionTimestamp() != nil {
		return Health{Status: "Progressing", Message: "Pending deletion"}, nil
	}
	if script == "" {
		return Health{}, errors.New("there is no script")
	}
	return runLua(object, script)
}

func runLua(object *unstructured.Unstructured, script string) (Health, error) {
	state := lua.NewState(lua.Options{SkipOpenLibs: true})
	defer state.Close()
	for name, open := range map[string]lua.LGFunction{
		lua.LoadLibName: lua.OpenPackage,
		lua.BaseLibName: lua.OpenBase,
		lua.TabLibName:  lua.OpenTable,
	} {
		state.Push(state.NewFunction(open))
		state.Push(lua.LString(name))
		if err := state.PCall(1, 0, nil); err != nil {
			return Health{}, err
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), luaTimeout)
	defer cancel()
	state.SetContext(ctx)
	state.SetGlobal("obj", luaValue(state, object.Object))
	if err := state.DoString(script); err != nil {
		return Health{}, err
	}
	return healthOf(state.Get(-1))
}

func healthOf(returned lua.LValue) (Health, error) {
	table, ok := returned.(*lua.LTable)
	if !ok {
		return Health{}, fmt.Errorf("the script returns a %s, not a table", returned.Type())
	}
	text, err := luajson.Encode(table)
	if err != nil {
		return Health{}, err
	}
	var found Health
	if err := json.Unmarshal(text, &found); err != nil {
		return Health{}, err
	}
	if !slices.Contains(healths, found.Status) {
		return Health{}, fmt.Errorf("%q is no health that Argo CD knows", found.Status)
	}
	return found, nil
}

// luaValue is a JSON value as a script sees it.
func luaValue(state *lua.LState, value any) lua.LValue {
	switch known := value.(type) {
	case bool:
		return lua.LBool(known)
	case string:
		return lua.LString(known)
	case int64:
		return lua.LNumber(known)
	case float64:
		return lua.LNumber(known)
	case []any:
		table := state.NewTable()
		for _, item := range known {
			table.Append(luaValue(state, item))
		}
		return table
	case map[string]any:
		table := state.NewTable()
		for key, item := range known {
			table.RawSetString(key, luaValue(state, item))
		}
		return table
	}
	return lua.LNil
}

-- Health of an RLEvalJob or an RLTrainingJob, for Argo CD. argocd-cm.yaml has it once for each kind.
-- Argo CD gives a script neither the string nor the math library.

local function is_true(conditions, kind)
  for _, condition in ipairs(conditions) do
    if condition.type == kind and condition.status == "True" then
      return condition
    end
  end
  return nil
end

local function health(status, condition)
  local message = condition.reason
  if condition.message ~= nil and condition.message ~= "" then
    message = message .. ": " .. condition.message
  end
  return { status = status, message = message }
end

local waiting = { status = "Progressing", message = "the operator has not looked at this spec yet" }
if obj.metadata.deletionTimestamp ~= nil then
  return { status = "Progressing", message = "the job is being deleted" }
end
if obj.status == nil or obj.status.conditions == nil then
  return waiting
end
if obj.status.observedGeneration ~= obj.metadata.generation then
  return waiting
end

local conditions = obj.status.conditions
local stalled = is_true(conditions, "Stalled")
if stalled ~= nil and stalled.reason ~= "Suspended" then
  return health("Degraded", stalled)
end
local complete = is_true(conditions, "Complete")
if complete ~= nil then
  local passed = is_true(conditions, "GatePassed")
  if passed == nil and obj.spec.gate ~= nil then
    return { status = "Degraded", message = "the job is complete, and nobody has said that its gate has passed" }
  end
  return health("Healthy", passed or complete) -- GatePassed has the numbers
end
if is_true(conditions, "Suspended") then
  return health("Suspended", is_true(conditions, "Suspended"))
end
local reconciling = is_true(conditions, "Reconciling")
if reconciling ~= nil then
  return health("Progressing", reconciling)
end
local ready = is_true(conditions, "Ready")
if ready ~= nil then
  return health("Healthy", ready)
end
return waiting

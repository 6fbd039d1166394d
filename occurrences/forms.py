"""What people type about runs and failures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from django import forms

from jobs.errors import InvalidDefinition
from jobs.forms import JSONTextField
from jobs.job_types import check_data
from occurrences.models import FailedOccurrence


class DataForm(forms.Form):
    """Job data of one run; empty text is an empty object."""

    data = JSONTextField(required=False)  # type: ignore[assignment]

    def accepted_by(self, deed: Callable[[dict[str, Any]], object]) -> bool:
        """Do it with the data. False when they are no data or the deed refuses them: the errors then stand beside what
        was typed, so that it can be mended.
        """
        if not self.is_valid():
            return False
        try:
            deed(self.cleaned_data["data"])
        except InvalidDefinition as error:
            for text in error.fields.get("data") or [str(error)]:
                self.add_error("data", text)
            return False
        return True


class ResolveForm(forms.Form):
    """How a failure was dealt with."""

    ACTIONS: ClassVar = [
        (action.value, action.label) for action in (FailedOccurrence.Action.FIXED, FailedOccurrence.Action.IGNORED)
    ]

    action = forms.ChoiceField(label="What was done", choices=ACTIONS)
    note = forms.CharField(
        max_length=2000,
        widget=forms.Textarea(attrs={"rows": 2, "placeholder": "For whoever looks next"}),
        error_messages={"required": "Say what was done, for whoever looks next."},
    )


class FailureForm(forms.ModelForm):  # type: ignore[type-arg]
    """In the administration: an open failure is resolved or retried by saving it."""

    action = forms.ChoiceField(
        label="What was done, or is to be done",
        choices=[*ResolveForm.ACTIONS, (FailedOccurrence.Action.RETRIED.value, "Retry it now")],
    )
    note = forms.CharField(required=False, max_length=2000, widget=forms.Textarea(attrs={"rows": 3}))
    job_data = JSONTextField(
        required=False, label="Data", help_text="For a retry only. Edited data replace those of the occurrence."
    )

    class Meta:
        model = FailedOccurrence
        fields = ("action", "note")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.instance.occurrence:
            self.initial["job_data"] = self.instance.occurrence.data

    def clean(self) -> dict[str, Any]:
        """A resolution needs a note, a retry an occurrence and data that fit."""
        values: dict[str, Any] = super().clean() or self.cleaned_data
        if values.get("action") != FailedOccurrence.Action.RETRIED:
            if not values.get("note", "").strip():
                self.add_error("note", "Say what was done, for whoever looks next.")
        elif self.instance.occurrence is None:
            self.add_error("action", "It belongs to no occurrence that could be retried.")
        elif (data := self.edited_data()) is not None:
            try:
                check_data(self.instance.occurrence.worker, self.instance.occurrence.job_type, data)
            except InvalidDefinition as error:
                for text in error.fields["data"]:
                    self.add_error("job_data", text)
        return values

    def edited_data(self) -> dict[str, Any] | None:
        """The data, if some were sent that are not those of the occurrence."""
        data: dict[str, Any] | None = self.cleaned_data.get("job_data")
        occurrence = self.instance.occurrence
        is_same = occurrence is None or "job_data" not in self.data or data == occurrence.data
        return None if is_same else data


def error_text(form: forms.Form) -> str:
    """All errors of a form in one line, for a message after a redirect."""
    return " ".join(f"{name}: {text}" for name, texts in form.errors.items() for text in texts)
